// ccscope's page of one recording. Columns are unpacked when a panel needs them, first the small.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const RIBBON_PX = 7, ROW_PX = 22;
  const board = new panels.Board(byId("panels"), data.duration, "ccscope");
  const shown = new Set(data.flows.slice(0, data.most).map((f) => f.label));
  let focus = data.focus, drawing = 0;

  // ---- columns ----

  function fromBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text), made = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
    return made;
  }
  // A column: differences, zigzag, by planes of bytes, deflated; `gap` stands for "none".
  async function unpack({ id, n, w, gap, scale }) {
    const element = byId(id);
    const stream = new Blob([fromBase64(element.textContent)]).stream()
      .pipeThrough(new DecompressionStream("deflate"));
    const raw = new Uint8Array(await new Response(stream).arrayBuffer());
    const made = new Float64Array(n);
    for (let i = 0, value = 0; i < n; i++) {
      let z = raw[i];
      for (let k = 1, f = 256; k < w; k++, f *= 256) z += raw[k * n + i] * f;
      value += z % 2 ? -(z + 1) / 2 : z / 2;
      made[i] = value === gap ? NaN : value * scale;
    }
    element.remove();
    return made;
  }
  const columns = new Map();
  function column(number) {
    if (!columns.has(number)) columns.set(number, unpack(data.columns[number]));
    return columns.get(number);
  }
  const curves = new Map();
  async function curve(pair) {
    const name = pair.join();
    if (!curves.has(name)) {
      const [t, y] = await Promise.all(pair.map(column));
      curves.set(name, new panels.Curve(t, y));
    }
    return curves.get(name);
  }

  // ---- panels ----

  const flows = () => data.flows.filter((f) => shown.has(f.label));
  const named = (flow, text) => (data.flows.length > 1 ? flow.name + " " + text : text);
  const dash = (flow) => flow.dash;
  const shade = (ctx, m) => panels.shade(ctx, m, data.intervals);

  async function lines(list) {
    const made = [];
    for (const [label, pair, look, read] of list) {
      if (pair) made.push(panels.line(label, await curve(pair), look, read));
    }
    return made;
  }
  async function marked(list) {
    const all = [], made = [];
    for (const flow of list) {
      const level = flow.curves.cwnd && await curve(flow.curves.cwnd);
      for (const [t, kind, cause, evidence] of flow.events) {
        all.push({
          t, kind, y: level ? level.at(t - 1e-9) : 0,
          text: named(flow, data.marks[kind].text) + " at " + t.toFixed(6) + " s\n" + cause +
            (data.evidence[evidence] ? ": " + data.evidence[evidence] : ""),
        });
      }
    }
    for (const [kind, look] of Object.entries(data.marks)) {
      const events = all.filter((e) => e.kind === kind);
      if (events.length) made.push(panels.marks(look.text, events, look));
    }
    return made;
  }
  async function ribbonOf(list) {
    const made = [];
    for (const flow of list) {
      if (flow.states) made.push({ flow, states: await curve(flow.states) });
    }
    return made;
  }

  async function cwnd() {
    const list = flows(), one = list.length === 1, things = [];
    for (const flow of list) {
      things.push(...await lines([
        ...(one ? [["in flight", flow.curves.flight, { colour: "#999999", width: 0.8 }]] : []),
        [named(flow, "ssthresh"), flow.curves.ssthresh,
          { colour: one ? panels.css("--soft") : flow.colour, width: 1, dash: [4, 3], alpha: 0.8 }],
        [named(flow, "cwnd"), flow.curves.cwnd,
          { colour: flow.colour, width: 1.5, dash: one ? undefined : dash(flow) }],
      ]));
    }
    things.push(...await marked(list));
    const strips = await ribbonOf(list);
    return {
      id: "p-cwnd", title: "Congestion window, segments", height: 270, things, zero: true,
      room: strips.length * RIBBON_PX + 8, before: shade,
      after(ctx, m) {
        const dpr = devicePixelRatio;
        strips.forEach(({ flow, states }, i) => {
          const top = m.top + i * RIBBON_PX * dpr, height = (RIBBON_PX - 1) * dpr;
          panels.strip(ctx, m, states, top, height, data.states, data.duration);
          if (strips.length > 1) {
            ctx.fillStyle = flow.colour;
            ctx.fillRect(m.left, top, 5 * dpr, height);
          }
        });
      },
    };
  }
  async function windows() {
    const flow = data.flows.find((f) => f.label === focus);
    if (!flow || !flow.curves.inflight) return null;
    const things = await lines([
      ["in flight", flow.curves.inflight, { colour: flow.colour, width: 1, area: true }],
      ["cwnd in bytes", flow.curves.window,
        { colour: panels.css("--ink"), width: 1.1, dash: [5, 3] }],
      ["receiver's window", flow.curves.rwnd, { colour: data.colours.edge, width: 1.4 }],
    ]);
    const rwnd = things.find((t) => t.label === "receiver's window");
    if (rwnd && flow.far) rwnd.show = false;
    return {
      id: "p-windows", height: 190, things, zero: true, before: shade,
      title: "In flight and windows, kB" + (data.flows.length > 1 ? ": " + flow.name : ""),
    };
  }
  async function throughput() {
    const things = [];
    for (const flow of flows()) {
      if (!flow.curves.total) continue;
      const total = await curve(flow.curves.total);
      const look = { colour: flow.colour, width: 1.4, dash: dash(flow) };
      things.push(panels.rate(named(flow, flow.goodput), total, look, flow.bin));
      if (flows().length === 1 && flow.curves.acked) {
        things.unshift(panels.rate("acknowledged", await curve(flow.curves.acked),
          { colour: "#999999", width: 0.8, show: false }, 0.001));
      }
    }
    return { id: "p-throughput", title: "Throughput, Mbit/s", height: 180, things, zero: true,
      before: shade };
  }
  async function rtt() {
    const list = flows(), one = list.length === 1, things = [];
    for (const flow of list) {
      if (flow.curves.rtt && (one || !flow.curves.srtt)) {
        things.push(panels.dots(named(flow, "each ACK (capture)"), await curve(flow.curves.rtt),
          { colour: one ? "#999999" : flow.colour }));
      }
      things.push(...await lines([
        [named(flow, "smoothed"), flow.curves.srtt,
          { colour: flow.colour, width: 1.4, dash: one ? undefined : dash(flow) }],
        [named(flow, "lowest"), flow.curves.min_rtt,
          { colour: one ? panels.css("--ink") : flow.colour, width: 0.9, dash: [4, 3] }],
      ]));
    }
    return { id: "p-rtt", title: "Round-trip time, ms", height: 180, things, zero: true,
      before: shade };
  }
  async function states() {
    const strips = await ribbonOf(flows()), rows = strips.length;
    if (!rows) return null;
    const things = [];
    for (let i = 0; i < rows; i++) {
      for (const thing of await marked([strips[i].flow])) {
        const paint = thing.paint, near = thing.near, Y = rows - i - 0.17;
        const at = (m) => ({ ...m, Y: () => m.Y(Y) });
        thing.paint = (ctx, m) => paint(ctx, at(m));
        thing.near = (m, X, y) => near(at(m), X, y);
        things.push(thing);
      }
    }
    const reading = strips.map(({ flow, states: s }) => ({
      label: data.flows.length > 1 ? flow.name : "", colour: flow.colour, paint() {},
      extremes: () => [Infinity, -Infinity], read: (x) => panels.STATES[s.at(x)] || "",
    }));
    return {
      id: "p-states", title: "CA state", height: 62 + ROW_PX * 1.5 * rows, bare: true,
      things: [...reading, ...things], limits: () => [0, rows],
      ticks: { splits: () => strips.map((_, i) => rows - i - 0.6), grid: { show: false },
        ticks: { show: false },
        values: () => strips.map(({ flow }) => flow.label.slice(0, 9)) },
      before: shade,
      after(ctx, m) {
        strips.forEach(({ states: s }, i) => {
          const top = m.Y(rows - i - 0.35), height = m.Y(rows - i - 0.9) - top;
          panels.strip(ctx, m, s, top, height, data.states, data.duration);
        });
      },
    };
  }
  async function sequence() {
    const flow = data.flows.find((f) => f.label === focus);
    if (!flow || !flow.sequence) return null;
    const { source, data: first, again, sack, acked, edge } = flow.sequence, things = [];
    const upright = async (label, part, look) => {
      if (!part) return;
      const [t, low, size] = await Promise.all(part.map(column));
      const high = Float64Array.from(low, (v, i) => v + size[i]);
      things.push(panels.uprights(label, new panels.Curve(t, low), new panels.Curve(t, high), look));
    };
    const far = edge && { colour: data.colours.edge, width: 1.2 };
    await upright("SACK", sack, { colour: data.colours.sack, aside: true });
    await upright("data", first, { colour: panels.css("--ink") });
    if (edge) {
      const made = panels.line("window's end", await curve(edge), far, (v) => v.toFixed(6));
      const whole = made.extremes;
      // Shown when it is near; else it would press the packets into a line.
      made.extremes = (x0, x1) => {
        const [a] = whole(x0, x1), [low, high] = acks ? acks.extremes(x0, x1) : [a, a];
        return a < high + 0.6 * (high - low) ? [Infinity, a] : [Infinity, -Infinity];
      };
      things.push(made);
    }
    const acks = acked && panels.line("ACK", await curve(acked),
      { colour: data.colours.acked, width: 1.3 }, (v) => v.toFixed(6));
    if (acks) things.push(acks);
    await upright("sent again", again, { colour: data.colours.again, strong: true });
    return {
      id: "p-sequence", height: 420, things, before: shade,
      title: "Packet time-sequence, MB" + (data.flows.length > 1 ? ": " + flow.name : "") +
        (source === "trace" ? " (from the trace)" : " (from the capture)"),
    };
  }
  async function queue() {
    if (!data.queue) return null;
    const things = await lines([[data.queue.stage, data.queue.curve,
      { colour: data.colours.queue, width: 0.8, area: true }]]);
    return { id: "p-queue", title: "Bottleneck's queue, packets", height: 150, things, zero: true,
      before: shade };
  }

  async function draw() {
    const turn = ++drawing;
    board.clear();
    for (const make of [cwnd, windows, throughput, rtt, states, queue, sequence]) {
      const panel = await make();
      if (turn !== drawing) return;
      if (panel && panel.things.length) board.add(panel);
    }
    byId("loading").hidden = true;
    listEvents(...board.range);
  }

  // ---- events ----

  function listEvents(low, high) {
    const rows = [];
    for (const flow of flows()) {
      for (const [t, kind, cause, evidence] of flow.events) {
        if (t >= low && t <= high) rows.push([t, flow.name, kind, cause, data.evidence[evidence]]);
      }
    }
    rows.sort((a, b) => a[0] - b[0]);
    const body = byId("events").tBodies[0];
    body.replaceChildren();
    for (const [t, name, kind, cause, evidence] of rows.slice(0, 100)) {
      const row = body.insertRow(), link = document.createElement("a");
      link.href = "#h-live";
      link.textContent = t.toFixed(6);
      link.addEventListener("click", () => board.setRange(t - 0.25, t + 0.75));
      row.insertCell().append(link);
      row.insertCell().textContent = name;
      const cell = row.insertCell();
      cell.className = "kind";
      cell.append(panels.symbol(data.marks[kind]), data.marks[kind].text);
      row.insertCell().textContent = cause + (data.causes[cause] ? ": " + data.causes[cause] : "");
      row.insertCell().textContent = evidence || "";
    }
    byId("events-note").textContent = rows.length + " events from " + low.toFixed(3) + " to " +
      high.toFixed(3) + " s" + (rows.length > 100 ? "; the first 100 are listed, zoom for others" : "");
  }

  // ---- controls ----

  function showRange(low, high) {
    const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(high - low))));
    byId("range").textContent = low.toFixed(digits) + " to " + high.toFixed(digits) + " s";
  }
  let waiting = 0;
  board.onRange((low, high) => {
    showRange(low, high);
    clearTimeout(waiting);
    waiting = setTimeout(() => listEvents(low, high), 150);
  });
  showRange(...board.range);
  for (const [id, action] of Object.entries({
    whole: () => board.whole(), back: () => board.back(), closer: () => board.zoom(0.5),
    wider: () => board.zoom(2), left: () => board.move(-0.2), right: () => board.move(0.2),
  })) byId(id).addEventListener("click", action);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  byId("states-legend").append("States: ");
  for (const name of panels.STATES) {
    const patch = document.createElement("span");
    patch.className = "swatch";
    patch.style.background = name === "Open" ? "var(--line)" : data.states[name];
    byId("states-legend").append(patch, name + " ");
  }
  if (data.flows.length > 1) {
    for (const flow of data.flows) {
      const box = document.createElement("input"), patch = document.createElement("span");
      box.type = "checkbox";
      box.checked = shown.has(flow.label);
      box.addEventListener("change", () => {
        if (box.checked) shown.add(flow.label); else shown.delete(flow.label);
        draw();
      });
      patch.className = "swatch";
      patch.style.background = flow.colour;
      const made = document.createElement("label");
      made.append(box, patch, flow.name);
      byId("flows").append(made);
      const choice = document.createElement("option");
      choice.value = flow.label;
      choice.textContent = flow.name;
      byId("focus").append(choice);
    }
    byId("focus-label").hidden = false;
    byId("focus").value = focus;
    byId("focus").addEventListener("change", () => {
      focus = byId("focus").value;
      draw();
    });
  }
  await draw();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  globalThis.ccscope = { board, ready: performance.now() };
})();
