// The page's interactive part: linked panels over time. Data are in the page, nothing is fetched.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.cells.length) return;
  const byId = (id) => document.getElementById(id);
  const STATES = ["Open", "Disorder", "CWR", "Recovery", "Loss"];
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
  let plots = [];
  let range = [0, data.duration];
  let moving = false;

  function bytes(text) {
    const raw = atob(text);
    const made = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
    return made;
  }
  function floats(text) {
    const values = new Float32Array(bytes(text).buffer);
    return Array.from(values, (v) => (Number.isNaN(v) ? null : v));
  }
  function grid(count) {
    return Array.from({ length: count }, (_, i) => (i * data.duration) / count);
  }
  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  function stateColour(name) {
    return name === "Open" ? css("--line") : data.states[name];
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

  function curves(cells, panel) {
    const made = [];
    for (const cell of cells) {
      for (const flow of cell.flows) {
        const look = data.labels.indexOf(cell.label);
        const base = { colour: data.colours[look], dash: DASHES[look % DASHES.length] };
        if (flow[panel.name]) {
          made.push({ ...base, name: flow.name, values: floats(flow[panel.name]) });
        }
        if (panel.second && flow[panel.second]) {
          made.push({ ...base, name: flow.name + " ssthresh", faint: true, dash: [3, 3],
            values: floats(flow[panel.second]) });
        }
      }
    }
    return made;
  }

  function shade(plot, cells) {
    const { ctx, bbox } = plot;
    const intervals = cells.length ? cells[0].intervals : [];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = css("--shade");
    for (const [start, end] of intervals) {
      const left = plot.valToPos(start, "x", true);
      const width = plot.valToPos(end, "x", true) - left;
      ctx.fillRect(left, bbox.top, Math.max(width, 2 * devicePixelRatio), bbox.height);
    }
    ctx.restore();
  }

  function drawRibbons(plot, cells) {
    const { ctx, bbox } = plot;
    const height = RIBBON_PX * devicePixelRatio;
    let top = bbox.top;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const cell of cells) {
      for (const flow of cell.flows) {
        if (!flow.ca) continue;
        const states = bytes(flow.ca);
        const step = data.duration / states.length;
        for (let i = 0; i < states.length;) {
          let end = i + 1;
          while (end < states.length && states[end] === states[i]) end++;
          const left = plot.valToPos(i * step, "x", true);
          const right = plot.valToPos(end * step, "x", true);
          ctx.fillStyle = stateColour(STATES[states[i]]);
          ctx.fillRect(left, top, Math.max(right - left, 1), height - devicePixelRatio);
          i = end;
        }
        ctx.fillStyle = data.colours[data.labels.indexOf(cell.label)];
        ctx.fillRect(bbox.left, top, 5 * devicePixelRatio, height - devicePixelRatio);
        top += height;
      }
    }
    ctx.restore();
  }

  function setRange(low, high) {
    const width = Math.min(Math.max(high - low, data.duration / 2000), data.duration);
    const start = Math.min(Math.max(low, 0), data.duration - width);
    range = [start, start + width];
    moving = true;
    for (const plot of plots) plot.setScale("x", { min: range[0], max: range[1] });
    moving = false;
  }

  function onKey(event) {
    const width = range[1] - range[0];
    const moves = { ArrowLeft: -0.2, ArrowRight: 0.2 };
    const middle = (range[0] + range[1]) / 2;
    if (event.key in moves) {
      const by = moves[event.key] * width;
      setRange(range[0] + by, range[1] + by);
    } else if (event.key === "+" || event.key === "=") {
      setRange(middle - width / 4, middle + width / 4);
    } else if (event.key === "-") {
      setRange(middle - width, middle + width);
    } else if (event.key === "Home" || event.key === "0") {
      setRange(0, data.duration);
    } else {
      return;
    }
    event.preventDefault();
  }

  function build(panel, cells) {
    const lines = curves(cells, panel);
    if (!lines.some((line) => line.values.some((v) => v !== null))) return;
    const box = document.createElement("div");
    box.className = "panel";
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", panel.title);
    const title = document.createElement("h3");
    title.textContent = panel.title;
    box.append(title);
    box.addEventListener("keydown", onKey);
    byId("panels").append(box);
    const stroke = css("--ink");
    const lattice = { stroke: css("--line"), width: 1 };
    const rows = cells.reduce((sum, c) => sum + c.flows.length, 0);
    const room = panel.ribbon ? (rows * RIBBON_PX) / panel.height + 0.06 : 0.06;
    const plot = new uPlot({
      width: box.clientWidth || 900,
      height: panel.height,
      cursor: { sync: { key: "airlab" }, drag: { x: true, y: false } },
      scales: {
        x: { time: false, min: range[0], max: range[1] },
        y: { range: (_, low, high) => [Math.min(0, low || 0), (high || 1) / (1 - room)] },
      },
      axes: [
        { stroke, grid: lattice, ticks: lattice, label: "time, s", labelSize: 18 },
        { stroke, grid: lattice, ticks: lattice, size: 56 },
      ],
      series: [
        { label: "s", value: (_, v) => (v === null ? "" : v.toFixed(3)) },
        ...lines.map((line) => ({
          label: line.name, stroke: line.colour, dash: line.dash,
          width: line.faint ? 0.8 : 1.4, alpha: line.faint ? 0.6 : 1,
          points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
          value: (_, v) => (v === null || v === undefined ? "" : String(+v.toPrecision(4))),
        })),
      ],
      hooks: {
        drawClear: [(u) => shade(u, cells)],
        draw: panel.ribbon ? [(u) => drawRibbons(u, cells)] : [],
        setScale: [(u, key) => {
          if (key === "x" && !moving && plots.includes(u)) {
            setRange(u.scales.x.min, u.scales.x.max);
          }
        }],
      },
    }, [grid(lines[0].values.length), ...lines.map((line) => line.values)], box);
    plots.push(plot);
  }

  function draw() {
    for (const plot of plots) plot.destroy();
    plots = [];
    byId("panels").replaceChildren();
    const cells = chosen();
    for (const panel of PANELS) build(panel, cells);
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
    for (const name of STATES) {
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
  byId("reset").addEventListener("click", () => setRange(0, data.duration));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", () => {
    for (const plot of plots) {
      plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height });
    }
  });
})();
