// The page's interactive part: linked panels over time. Data are in the page, nothing is fetched.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.cells.length) return;
  const byId = (id) => document.getElementById(id);
  const RIBBON_PX = 6;
  const DASHES = [[], [9, 4], [9, 3, 2, 3], [2, 3], [6, 2, 2, 2, 2, 2], [14, 4], [4, 8]];
  const PANELS = [
    { name: "goodput", title: "Goodput, Mbit/s", height: 200 },
    { name: "cwnd", title: "Congestion window (solid) and ssthresh (faint), segments; state of " +
      "each algorithm as a ribbon on top", height: 260, second: "ssthresh", ribbon: true },
    { name: "srtt", title: "Smoothed round-trip time, ms", height: 180 },
    { name: "queue", title: "Bottleneck queue, packets", height: 180 },
  ];
  const shown = new Set(data.labels);
  const board = new panels.Board(byId("panels"), data.duration, "airlab");

  function bytes(text) {
    const raw = atob(text);
    const made = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
    return made;
  }
  function curve(values) {
    const t = Float64Array.from(values, (_, i) => (i * data.duration) / values.length);
    return new panels.Curve(t, values);
  }
  function option(select, value, text) {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    select.append(made);
  }

  function chosen() {
    const point = Number(byId("point").value);
    const seed = Number(byId("seed").value);
    return data.cells.filter(
      (c) => c.point === point && c.seed === seed && shown.has(c.label));
  }

  function things(cells, panel) {
    const made = [];
    for (const cell of cells) {
      for (const flow of cell.flows) {
        const place = data.labels.indexOf(cell.label);
        const look = { colour: data.colours[place], dash: DASHES[place % DASHES.length] };
        const add = (name, text, more) => {
          if (!text) return;
          const values = new Float32Array(bytes(text).buffer);
          if (values.some((v) => v === v)) made.push(panels.line(name, curve(values), more));
        };
        add(flow.name, flow[panel.name], look);
        if (panel.second) {
          add(flow.name + " ssthresh", flow[panel.second],
            { ...look, dash: [3, 3], width: 0.8, alpha: 0.6 });
        }
      }
    }
    return made;
  }

  function ribbons(ctx, m, cells) {
    const height = RIBBON_PX * devicePixelRatio;
    let top = m.top;
    for (const cell of cells) {
      for (const flow of cell.flows) {
        if (!flow.ca) continue;
        panels.strip(ctx, m, curve(bytes(flow.ca)), top, height - devicePixelRatio, data.states,
          data.duration);
        ctx.fillStyle = data.colours[data.labels.indexOf(cell.label)];
        ctx.fillRect(m.left, top, 5 * devicePixelRatio, height - devicePixelRatio);
        top += height;
      }
    }
  }

  function draw() {
    board.clear();
    const cells = chosen();
    for (const panel of PANELS) {
      const made = things(cells, panel);
      if (!made.length) continue;
      const rows = cells.reduce((sum, c) => sum + c.flows.length, 0);
      board.add({
        title: panel.title, height: panel.height, things: made, zero: true,
        room: panel.ribbon ? rows * RIBBON_PX : 0,
        before: (ctx, m) => panels.shade(ctx, m, cells.length ? cells[0].intervals : []),
        after: panel.ribbon ? (ctx, m) => ribbons(ctx, m, cells) : null,
      });
    }
    const marks = cells.length ? cells[0].intervals : [];
    const names = marks.map(([a, b, text]) =>
      text + " " + (b > a ? a + " to " + b + " s" : "at " + a + " s"));
    const vetoed = cells.filter((c) => c.verdict === "veto").map((c) => c.label);
    byId("notes").textContent =
      (names.length ? "Shaded: " + names.slice(0, 6).join("; ") +
        (names.length > 6 ? "; and " + (names.length - 6) + " more. " : ". ") : "") +
      (vetoed.length ? "Vetoed by the audit: " + vetoed.join(", ") + "." : "");
  }

  function seeds() {
    const point = Number(byId("point").value);
    const before = byId("seed").value;
    const all = [...new Set(data.cells.filter((c) => c.point === point).map((c) => c.seed))];
    byId("seed").replaceChildren();
    for (const seed of all) option(byId("seed"), seed, seed);
    if (all.includes(Number(before))) byId("seed").value = before;
  }

  function legend() {
    const line = byId("legend");
    line.append("States: ");
    for (const name of panels.STATES) {
      const patch = document.createElement("span");
      patch.className = "swatch";
      patch.style.background = name === "Open" ? "var(--line)" : data.states[name];
      line.append(patch, name + " ");
    }
    const notes = document.createElement("span");
    notes.id = "notes";
    line.append(document.createElement("br"), notes);
  }

  byId("live").hidden = false;
  data.points.forEach((name, i) => option(byId("point"), i, name));
  data.labels.forEach((label, i) => {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) shown.add(label); else shown.delete(label);
      draw();
    });
    const patch = document.createElement("span");
    patch.className = "swatch";
    patch.style.background = data.colours[i];
    const made = document.createElement("label");
    made.append(box, patch, label);
    byId("labels").append(made);
  });
  legend();
  seeds();
  draw();
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("point").addEventListener("change", () => { seeds(); draw(); });
  byId("seed").addEventListener("change", draw);
  byId("reset").addEventListener("click", () => board.whole());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
