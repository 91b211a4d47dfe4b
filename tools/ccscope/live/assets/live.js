"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const POINTS = 60000;
  const MARKS = 5000;
  const OTHERS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#7b61ff"];
  const SERIES = [["cwnd", "cwnd"], ["ssthresh", "ssthresh"], ["inflight", "in flight"]];
  const state = {
    asked: [], shown: new Map(), flows: [], kinds: new Map(), now: 0, held: false, over: false,
    span: 30, view: null, source: null, log: false,
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const plain = (value, digits) => (value === null || value === undefined ? "-" : value.toFixed(digits));

  function element(name, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }

  function empty() {
    return { points: { t: [], cwnd: [], ssthresh: [], inflight: [], srtt_ms: [] },
             rate: { t: [], bps: [] }, marks: [], again: [] };
  }

  function append(to, more) {
    const over = to.t.length + more.t.length - POINTS;
    for (const name of Object.keys(to)) {
      for (const value of more[name]) to[name].push(value);
      if (over > POINTS / 4) to[name].splice(0, over);
    }
  }

  function take(frame) {
    Object.assign(state, { now: frame.now, over: frame.over, flows: frame.flows });
    for (const [label, news] of Object.entries(frame.shown)) {
      if (!state.shown.has(label)) state.shown.set(label, empty());
      const flow = state.shown.get(label);
      append(flow.points, news.points);
      append(flow.rate, news.rate);
      flow.marks.push(...news.marks);
      flow.again.push(...news.again);
      flow.marks.splice(0, Math.max(flow.marks.length - MARKS, 0));
      flow.again.splice(0, Math.max(flow.again.length - MARKS, 0));
    }
    $("lost").hidden = !frame.lost;
    $("lost").textContent = `${frame.lost} events lost`;
  }

  function connect() {
    if (state.source) state.source.close();
    state.shown.clear();
    const query = state.asked.map((label) => `flow=${encodeURIComponent(label)}`).join("&");
    const source = new EventSource(`events?${query}`);
    state.source = source;
    source.addEventListener("hello", (event) => {
      const hello = JSON.parse(event.data);
      state.shown.clear();  // also after a connection that was lost: all comes again
      state.kinds = new Map(hello.kinds.map((kind) => [kind.kind, kind]));
      $("source").textContent = hello.source;
      $("source").title = hello.cannot.map((text) => `cannot give: ${text}`).join("\n");
      if (!$("span").dataset.set) {
        $("span").dataset.set = "yes";
        setSpan(hello.span_s);
      }
    });
    source.addEventListener("frame", (event) => {
      take(JSON.parse(event.data));
      if (!state.held) draw();
    });
    source.addEventListener("failed", (event) => {
      source.close();
      $("status").textContent = JSON.parse(event.data).why;
      $("status").className = "bad";
    });
    source.onerror = () => { $("status").textContent = "connection lost"; };
  }

  function setSpan(seconds) {
    state.span = seconds;
    state.view = null;
    const known = [...$("span").options].find((option) => Number(option.value) === seconds);
    if (known) known.selected = true;
    else {
      const option = element("option", `${seconds} s`);
      option.value = seconds;
      option.selected = true;
      $("span").append(option);
    }
  }

  function limits() {
    if (state.view) return state.view;
    const end = Math.max(state.now, state.span);
    return [end - state.span, end];
  }

  // ---- the plots ----

  const sync = uPlot.sync("time");
  const plots = {};

  // Marks of the first flow: a line down the plot, its letter above.
  function marks(u, letters) {
    const label = [...state.shown.keys()][0];
    if (!label) return;
    const { ctx, bbox } = u;
    const [first, last] = [u.scales.x.min, u.scales.x.max];
    const flow = state.shown.get(label);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `700 ${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    const free = new Map();
    for (const [t, kind] of flow.marks) {
      if (t < first || t > last) continue;
      const x = Math.round(u.valToPos(t, "x", true)) + 0.5;
      ctx.strokeStyle = ctx.fillStyle = colour(kind);
      ctx.globalAlpha = 0.4;
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + (letters ? (kind === "undo" ? 27 : 14) * devicePixelRatio : 0));
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      // Letters that would lie over one another are drawn once.
      if (letters && x - (free.get(kind) ?? -1e9) > 9 * devicePixelRatio) {
        // An undo follows closely what it undoes.
        const row = kind === "undo" ? 24 : 11;
        ctx.fillText(state.kinds.get(kind).letter, x, bbox.top + row * devicePixelRatio);
        free.set(kind, x);
      }
    }
    if (!letters) {
      ctx.fillStyle = colour("loss");
      for (const t of flow.again) {
        if (t < first || t > last) continue;
        const x = u.valToPos(t, "x", true);
        ctx.fillRect(x - devicePixelRatio, bbox.top, 2 * devicePixelRatio, 6 * devicePixelRatio);
      }
    }
    ctx.restore();
  }

  function axis(extra) {
    return { stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 },
             ticks: { stroke: () => colour("line") }, font: "12px system-ui, sans-serif", ...extra };
  }

  function seconds(u, splits) {
    const step = splits.length > 1 ? splits[1] - splits[0] : 1;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return splits.map((value) => value.toFixed(Math.min(digits, 6)));
  }

  function plot(id, height, series, letters, log) {
    const top = (u, low, high) => [0, Math.max(high ?? 0, id === "window" ? 4 : 0.001) * (letters ? 1.18 : 1.1)];
    const value = log ? { distr: 3, range: (u, low, high) => [Math.max(Math.min(low ?? 1, 1), 0.01), Math.max(high ?? 10, 10) * 2] }
                      : { range: top };
    const options = {
      width: $(id).clientWidth, height,
      legend: { show: false },
      cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false },
                points: { size: 7 } },
      scales: { x: { time: false, range: () => limits() }, y: value },
      axes: [axis({ values: seconds, size: 28 }), axis({ size: 56 })],
      series: [{}, ...series],
      hooks: {
        draw: [(u) => marks(u, letters)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          state.view = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          draw();
        }],
        setCursor: [(u) => { if (u.over.matches(":hover")) tip(u); }],
      },
    };
    const made = new uPlot(options, [[], ...series.map(() => [])], $(id));
    made.over.addEventListener("dblclick", () => { state.view = null; draw(); });
    made.over.addEventListener("mouseleave", () => { $("tip").hidden = true; });
    made.over.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [first, last] = limits();
      const at = made.posToVal(event.offsetX, "x");
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      state.view = [at - (at - first) * factor, at + (last - at) * factor];
      draw();
    }, { passive: false });
    return made;
  }

  function build() {
    for (const made of Object.values(plots)) made.destroy();
    const labels = [...state.shown.keys()];
    const several = labels.length > 1;
    const each = (width) => labels.map((label, i) => (
      { label, stroke: OTHERS[i % OTHERS.length], width, spanGaps: true, points: { show: false } }));
    const one = (name, label, width, more) => (
      { label, stroke: () => colour(name), width, spanGaps: true, points: { show: false }, ...more });
    const steps = { paths: uPlot.paths.stepped({ align: 1 }) };
    plots.window = plot("window", 270, several ? each(1.6) : [
      one("cwnd", "cwnd", 2), one("ssthresh", "ssthresh", 1.2, { dash: [5, 3], ...steps }),
      one("inflight", "in flight", 1)], true, state.log);
    plots.rate = plot("rate", 140, several ? each(1.4) : [one("rate", "Mbit/s", 1.4)], false, false);
    plots.rtt = plot("rtt", 140, several ? each(1.2) : [one("srtt", "srtt", 1.4)], false, false);
    state.built = `${labels.join()} ${state.log}`;
    legend(labels, several);
  }

  function legend(labels, several) {
    const parts = [];
    if (several) labels.forEach((label, i) => {
      const part = element("span", `\u2501 ${label} ${(state.flows.find((f) => f.label === label) || {}).cc || ""}`);
      part.style.color = OTHERS[i % OTHERS.length];
      parts.push(part);
    });
    else for (const [name, label] of SERIES) {
      const part = element("span", `\u2501 ${label}`);
      part.style.color = colour(name);
      parts.push(part);
    }
    for (const [kind, { letter, about }] of state.kinds) {
      const part = element("span");
      part.append(element("b", letter, `k-${kind}`), ` ${about.split(":")[0]}`);
      part.title = about;
      parts.push(part);
    }
    const again = element("span");
    again.append(element("b", "\u2759", "k-loss"), " retransmission");
    parts.push(again);
    $("legend").replaceChildren(...parts);
  }

  // The part of sorted columns that is shown, and one more on each side.
  function cut(columns, [first, last]) {
    const t = columns.t;
    const place = (value) => {
      let [low, high] = [0, t.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (t[middle] < value) low = middle + 1; else high = middle;
      }
      return low;
    };
    const [from, to] = [Math.max(place(first) - 1, 0), place(last) + 1];
    return (name, scale = 1) => columns[name].slice(from, to).map((v) => (v === null || scale === 1 ? v : v * scale));
  }

  function draw() {
    const labels = [...state.shown.keys()];
    if (state.built !== `${labels.join()} ${state.log}`) build();
    const range = limits();
    const several = labels.length > 1;
    const tables = { window: [], rate: [], rtt: [] };
    for (const label of labels) {
      const flow = state.shown.get(label);
      const points = cut(flow.points, range);
      const rate = cut(flow.rate, range);
      const t = points("t");
      const cwnd = points("cwnd");
      if (several) tables.window.push([t, cwnd]);
      else {
        // Thresholds far above the window say "none" and would hide the rest.
        const ceiling = 4 * cwnd.reduce((most, value) => Math.max(most, value ?? 0), 10);
        const ssthresh = points("ssthresh").map((v) => (v !== null && v > ceiling ? null : v));
        tables.window.push([t, cwnd, ssthresh, points("inflight")]);
      }
      tables.rate.push([rate("t"), rate("bps", 1e-6)]);
      tables.rtt.push([t, points("srtt_ms")]);
    }
    for (const [id, found] of Object.entries(tables)) {
      if (!found.length) continue;
      plots[id].batch(() => {
        plots[id].setData(found.length > 1 ? uPlot.join(found) : found[0], false);
        plots[id].setScale("x", { min: range[0], max: range[1] });
      });
    }
    words();
  }

  function words() {
    const status = $("status");
    status.className = state.held ? "held" : "";
    status.textContent = state.held ? `paused at ${state.now.toFixed(1)} s`
      : `${state.now.toFixed(1)} s${state.over ? ", ended" : ""}${state.view ? ", looking back" : ""}`;
    const labels = [...state.shown.keys()];
    const flow = state.flows.find((f) => f.label === labels[0]);
    if (flow) {
      const parts = [`${flow.label}  ${flow.ends}  ${flow.cc}`, "cwnd", plain(flow.cwnd, 0), "ssthresh",
        plain(flow.ssthresh, 0), "srtt", `${plain(flow.srtt_ms, 1)} ms`, "rate", `${(flow.bps / 1e6).toFixed(2)} Mbit/s`,
        "state", flow.state];
      const made = [element("b", parts[0])];
      for (let i = 1; i < parts.length; i += 2) made.push(`   ${parts[i]} `, element("b", parts[i + 1]));
      $("flow").replaceChildren(...made);
    }
    table(labels);
    const shown = labels.length ? state.shown.get(labels[0]).marks : [];
    const [first, last] = limits();
    const recent = shown.filter(([t]) => t >= first && t <= last).slice(-50).reverse();
    $("events").replaceChildren(...recent.map(([t, kind, text]) => {
      const item = element("li");
      item.append(element("b", `${state.kinds.get(kind).letter} `, `k-${kind}`), `${t.toFixed(3)} s  ${text}`);
      return item;
    }));
  }

  // Rows stay the same elements, so that a click that takes a while still hits its row.
  function table(labels) {
    const body = $("flows").tBodies[0];
    const known = new Map([...body.rows].map((row) => [row.dataset.flow, row]));
    state.flows.forEach((f, place) => {
      let row = known.get(f.label);
      known.delete(f.label);
      if (!row) {
        row = element("tr");
        row.dataset.flow = f.label;
        row.tabIndex = 0;
        for (const kind of ["", "", "", "", "num", "num", "num", "", "num"]) row.append(element("td", "", kind));
      }
      if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
      row.setAttribute("aria-selected", String(labels.includes(f.label)));
      const events = [...state.kinds].filter(([kind]) => f.counts[kind])
        .map(([kind, { letter }]) => `${letter}\u2009${f.counts[kind]}`).join("  ");
      const texts = [f.label, f.ends, f.cc, f.state, (f.bps / 1e6).toFixed(2), plain(f.cwnd, 0),
                     plain(f.srtt_ms, 1), events, String(f.counts.retransmits || 0)];
      texts.forEach((text, i) => {
        if (row.cells[i].textContent !== text) row.cells[i].textContent = text;
      });
    });
    for (const row of known.values()) row.remove();
  }

  function tip(u) {
    const labels = [...state.shown.keys()];
    const box = $("tip");
    const { left, idx } = u.cursor;
    box.hidden = !(labels.length && left >= 0 && idx !== null && idx !== undefined);
    if (box.hidden) return;
    const at = u.posToVal(left, "x");
    const near = u.posToVal(left + 5, "x") - at;
    const lines = [`${at.toFixed(4)} s`];
    u.series.slice(1).forEach((series, i) => {
      // Of several flows, only one has a row at this very time.
      let at = idx;
      while (at > 0 && (u.data[i + 1][at] === null || u.data[i + 1][at] === undefined)) at -= 1;
      const value = u.data[i + 1][at];
      if (value !== null && value !== undefined) lines.push(`${series.label} ${+value.toFixed(2)}`);
    });
    const found = state.shown.get(labels[0]).marks.filter(([t]) => Math.abs(t - at) <= near).slice(0, 4);
    for (const [t, , text] of found) lines.push(`${t.toFixed(4)} s: ${text}`);
    box.textContent = lines.join("\n");
    const place = u.over.getBoundingClientRect();
    box.style.top = `${place.top + 12}px`;
    const right = place.left + left > innerWidth / 2;
    box.style.left = right ? "auto" : `${place.left + left + 14}px`;
    box.style.right = right ? `${innerWidth - place.left - left + 14}px` : "auto";
  }

  // ---- controls ----

  function hold(on) {
    state.held = on;
    $("pause").setAttribute("aria-pressed", String(on));
    $("pause").textContent = on ? "Go on" : "Pause";
    if (on) words(); else draw();
  }

  function choose(label, more) {
    const labels = [...state.shown.keys()];
    if (!more) state.asked = [label];
    else if (labels.includes(label)) state.asked = labels.filter((l) => l !== label);
    else state.asked = [...labels, label].slice(-OTHERS.length);
    hold(false);
    connect();
  }

  $("pause").onclick = () => hold(!state.held);
  $("now").onclick = () => { state.view = null; draw(); };
  $("span").onchange = () => { setSpan(Number($("span").value)); draw(); };
  $("log").onchange = () => { state.log = $("log").checked; draw(); };
  $("flows").tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) choose(row.dataset.flow, event.ctrlKey || event.metaKey);
  });
  $("flows").tBodies[0].addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose(event.target.dataset.flow, event.ctrlKey);
  });
  addEventListener("keydown", (event) => {
    if (event.target !== document.body || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === " ") { event.preventDefault(); hold(!state.held); }
    if (event.key === "0") $("now").click();
  });
  addEventListener("resize", () => {
    for (const [id, made] of Object.entries(plots)) made.setSize({ width: $(id).clientWidth, height: made.height });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { build(); draw(); });
  connect();
})();
