// Panels over one axis of time, for ccscope's and airlab's pages: uPlot gives axes, legend and the
// mouse, the rest is drawn here from typed arrays, only for the window that is seen.
"use strict";
const panels = (() => {
  const FACTOR = 16; // of the levels that keep minimum and maximum
  const LEAST = 1e-6; // seconds: no zoom goes further
  const STATES = ["Open", "Disorder", "CWR", "Recovery", "Loss"];

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  function nice(width) {
    const unit = 10 ** Math.floor(Math.log10(width));
    return [1, 2, 5, 10].map((m) => m * unit).find((w) => w >= width * (1 - 1e-9));
  }

  // A step curve: times ascending, a value holds until the next; NaN where there is none.
  class Curve {
    constructor(t, y) {
      this.t = t;
      this.y = y;
      this.levels = null;
    }
    // Index of the first time after x.
    after(x) {
      let low = 0, high = this.t.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.t[middle] > x) high = middle; else low = middle + 1;
      }
      return low;
    }
    at(x) {
      const i = this.after(x) - 1;
      return i < 0 ? NaN : this.y[i];
    }
    // A running count between its points, by straight lines.
    between(x) {
      const i = this.after(x), last = this.t.length - 1;
      if (i === 0) return this.y[0];
      if (i > last) return this.y[last];
      const part = (x - this.t[i - 1]) / (this.t[i] - this.t[i - 1]);
      return this.y[i - 1] + part * (this.y[i] - this.y[i - 1]);
    }
    build() {
      this.levels = [];
      let low = this.y, high = this.y;
      while (low.length > FACTOR) {
        const count = Math.ceil(low.length / FACTOR);
        const lows = new Float64Array(count), highs = new Float64Array(count);
        for (let k = 0; k < count; k++) {
          let a = Infinity, b = -Infinity;
          const end = Math.min((k + 1) * FACTOR, low.length);
          for (let i = k * FACTOR; i < end; i++) {
            if (low[i] < a) a = low[i];
            if (high[i] > b) b = high[i];
          }
          lows[k] = a;
          highs[k] = b;
        }
        this.levels.push([lows, highs]);
        low = lows;
        high = highs;
      }
    }
    // Lowest and highest value of the points i..j-1; Infinity, -Infinity when there is none.
    range(i, j) {
      if (this.levels === null) this.build();
      let lows = this.y, highs = this.y, a = Infinity, b = -Infinity, level = 0;
      const take = (k) => {
        if (lows[k] < a) a = lows[k];
        if (highs[k] > b) b = highs[k];
      };
      while (i < j) {
        if (level === this.levels.length || j - i < 2 * FACTOR) {
          for (; i < j; i++) take(i);
          break;
        }
        while (i % FACTOR) take(i++);
        while (j % FACTOR) take(--j);
        i /= FACTOR;
        j /= FACTOR;
        [lows, highs] = this.levels[level++];
      }
      return [a, b];
    }
    extremes(x0, x1) {
      return this.range(Math.max(this.after(x0) - 1, 0), this.after(x1));
    }
  }

  // Where things are on the canvas, in device pixels.
  function mapping(u) {
    const { left, top, width, height } = u.bbox;
    const { min: x0, max: x1 } = u.scales.x;
    const { min: y0, max: y1 } = u.scales.y;
    const fx = width / (x1 - x0), fy = height / (y1 - y0);
    return { x0, x1, left, top, width, height, fx,
      X: (x) => left + (x - x0) * fx, Y: (y) => top + height - (y - y0) * fy };
  }
  function pen(ctx, look) {
    ctx.strokeStyle = look.colour;
    ctx.fillStyle = look.colour;
    ctx.lineWidth = (look.width || 1.3) * devicePixelRatio;
    ctx.globalAlpha = look.alpha || 1;
    ctx.setLineDash((look.dash || []).map((d) => d * devicePixelRatio));
    ctx.lineJoin = "round";
  }

  function trace(ctx, m, curve) {
    let i = Math.max(curve.after(m.x0) - 1, 0), down = false, last = 0;
    const end = curve.after(m.x1), dots = [];
    const to = (x, y) => {
      if (y !== y) {
        if (down) ctx.lineTo(x, last);
        down = false;
        return;
      }
      const Y = m.Y(y);
      if (down) ctx.lineTo(x, last);
      if (down) ctx.lineTo(x, Y); else ctx.moveTo(x, Y);
      down = true;
      last = Y;
    };
    ctx.beginPath();
    if (end - i <= 3 * m.width) {
      for (; i < end; i++) {
        const X = m.X(Math.max(curve.t[i], m.x0));
        to(X, curve.y[i]);
        if (curve.t[i] >= m.x0) dots.push(X, m.Y(curve.y[i]));
      }
    } else {
      for (let px = 0; px < m.width && i < end; px++) {
        const stop = m.x0 + (px + 1) / m.fx;
        if (curve.t[i] > stop) continue;
        let j = i + 1;
        // Gallop, then halve: columns are many and points more.
        for (let step = 1; j < end && curve.t[j] <= stop; step *= 2) j += step;
        let low = i, high = Math.min(j, end);
        while (low < high) {
          const middle = (low + high) >> 1;
          if (curve.t[middle] > stop) high = middle; else low = middle + 1;
        }
        const X = m.left + px, [a, b] = curve.range(i, low);
        to(X, curve.y[i]);
        if (a <= b) {
          to(X, a);
          to(X, b);
        }
        to(X, curve.y[low - 1]);
        i = low;
      }
    }
    if (down) ctx.lineTo(m.left + m.width, last);
    return dots;
  }

  // ---- things that a panel shows; each paints itself and knows its extremes ----

  function line(label, curve, look, read) {
    return {
      label, ...look,
      paint(ctx, m) {
        pen(ctx, look);
        const dots = trace(ctx, m, curve);
        ctx.stroke();
        if (look.area) {
          ctx.lineTo(m.left + m.width, m.Y(0));
          ctx.lineTo(m.X(Math.max(m.x0, curve.t[0])), m.Y(0));
          ctx.globalAlpha = 0.25;
          ctx.fill();
        }
        if (dots.length <= 300 && !look.dash) {
          const r = 1.6 * devicePixelRatio;
          for (let i = 0; i < dots.length; i += 2) {
            if (dots[i + 1] === dots[i + 1]) ctx.fillRect(dots[i] - r, dots[i + 1] - r, 2 * r, 2 * r);
          }
        }
      },
      extremes: (x0, x1) => curve.extremes(x0, x1),
      read: (x) => (read ? read(curve.at(x)) : curve.at(x)),
    };
  }

  // The rate of a running count of bytes, Mbit/s, in bins that follow the zoom.
  function rate(label, total, look, least) {
    let seen = [], made = null;
    const curve = (x0, x1) => {
      if (made === null || seen[0] !== x0 || seen[1] !== x1) {
        const width = nice(Math.max((x1 - x0) / 200, least));
        const first = Math.floor(x0 / width), count = Math.ceil(x1 / width) - first;
        const t = new Float64Array(count), y = new Float64Array(count);
        for (let i = 0; i < count; i++) {
          t[i] = (first + i) * width;
          y[i] = (total.between(t[i] + width) - total.between(t[i])) * 8e-6 / width;
        }
        made = new Curve(t, y);
        seen = [x0, x1];
      }
      return made;
    };
    const thing = {
      label, ...look,
      paint(ctx, m) {
        pen(ctx, look);
        trace(ctx, m, curve(m.x0, m.x1));
        ctx.stroke();
      },
      extremes: (x0, x1) => curve(x0, x1).extremes(x0, x1),
      read: (x) => (made ? made.at(x) : NaN),
    };
    return thing;
  }

  function dots(label, curve, look) {
    return {
      label, ...look,
      paint(ctx, m) {
        pen(ctx, look);
        const i = curve.after(m.x0), end = curve.after(m.x1);
        const size = (end - i < 2000 ? 2 : 1.2) * devicePixelRatio;
        if (end - i > 40 * m.width) {
          bars(ctx, m, curve, curve, i, end, size);
          return;
        }
        for (let k = i; k < end; k++) {
          ctx.fillRect(m.X(curve.t[k]) - size / 2, m.Y(curve.y[k]) - size / 2, size, size);
        }
      },
      extremes: (x0, x1) => curve.range(curve.after(x0), curve.after(x1)),
    };
  }

  // Columns from the lowest to the highest point, for more points than can be told apart.
  function bars(ctx, m, low, high, i, end, width) {
    for (let px = 0; px < m.width && i < end; px++) {
      const stop = m.x0 + (px + 1) / m.fx;
      let a = i, b = end;
      if (low.t[i] > stop) continue;
      while (a < b) {
        const middle = (a + b) >> 1;
        if (low.t[middle] > stop) b = middle; else a = middle + 1;
      }
      const bottom = m.Y(low.range(i, a)[0]), top = m.Y(high.range(i, a)[1]);
      ctx.fillRect(m.left + px - (width - 1) / 2, top, width, Math.max(bottom - top, 1));
      i = a;
    }
  }

  // Upright lines, such as segments in a time-sequence graph.
  function uprights(label, low, high, look) {
    return {
      label, ...look,
      paint(ctx, m) {
        pen(ctx, look);
        const i = low.after(m.x0 - 1e-12), end = low.after(m.x1), dpr = devicePixelRatio;
        if (end - i > 20 * m.width) {
          bars(ctx, m, low, high, i, end, look.strong ? 2 * dpr : 1);
          return;
        }
        const width = (end - i < m.width / 3 ? 2 : end - i < 2 * m.width ? 1.4 : 1) * dpr;
        const caps = end - i < m.width / 12, cross = look.strong && end - i < m.width / 2;
        for (let k = i; k < end; k++) {
          const X = m.X(low.t[k]), bottom = m.Y(low.y[k]), top = m.Y(high.y[k]);
          const tall = Math.max(bottom - top, look.strong ? 3 * dpr : 1);
          if (cross && bottom - top < 5 * dpr) {
            const Y = (bottom + top) / 2, r = 4 * dpr;
            ctx.beginPath();
            ctx.moveTo(X - r, Y - r);
            ctx.lineTo(X + r, Y + r);
            ctx.moveTo(X - r, Y + r);
            ctx.lineTo(X + r, Y - r);
            ctx.lineWidth = 1.6 * dpr;
            ctx.stroke();
          }
          ctx.fillRect(X - width / 2, bottom - tall, width, tall);
          if (caps && tall > 4 * dpr) {
            ctx.fillRect(X - 2.5 * dpr, bottom - dpr / 2, 5 * dpr, dpr);
            ctx.fillRect(X - 2.5 * dpr, top - dpr / 2, 5 * dpr, dpr);
          }
        }
      },
      extremes(x0, x1) {
        const i = low.after(x0), end = low.after(x1);
        return look.aside ? [Infinity, -Infinity]
          : [low.range(i, end)[0], high.range(i, end)[1]];
      },
    };
  }

  const SHAPES = {
    v: [[-1, -0.9], [1, -0.9], [0, 1]], "^": [[-1, 0.9], [1, 0.9], [0, -1]],
    s: [[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]], D: [[0, -1.15], [1, 0], [0, 1.15], [-1, 0]],
    X: [[-1, -0.5], [-0.5, -1], [0, -0.5], [0.5, -1], [1, -0.5], [0.5, 0], [1, 0.5], [0.5, 1],
      [0, 0.5], [-0.5, 1], [-1, 0.5], [-0.5, 0]],
  };
  function shape(ctx, name, X, Y, r) {
    ctx.beginPath();
    if (SHAPES[name]) {
      SHAPES[name].forEach(([x, y], i) => ctx[i ? "lineTo" : "moveTo"](X + x * r, Y + y * r));
      ctx.closePath();
    } else {
      ctx.arc(X, Y, r * 0.9, 0, 7);
    }
    ctx.fill();
    ctx.stroke();
  }

  // Events at a height: [{t, y, text}] in order of time.
  function marks(label, events, look) {
    const seen = (m) => events.filter((e) => e.t >= m.x0 && e.t <= m.x1);
    return {
      label, ...look, marks: true,
      paint(ctx, m) {
        const inside = seen(m);
        const r = (inside.length > 150 ? 2.6 : inside.length > 40 ? 3.6 : 4.8) * devicePixelRatio;
        ctx.setLineDash([]);
        ctx.globalAlpha = 1;
        ctx.fillStyle = look.colour;
        ctx.strokeStyle = css("--ink");
        ctx.lineWidth = 0.7 * devicePixelRatio;
        for (const e of inside) shape(ctx, look.shape, m.X(e.t), m.Y(e.y), r);
      },
      extremes: () => [Infinity, -Infinity],
      near(m, X, Y) {
        let best = null, most = 12 * devicePixelRatio;
        for (const e of seen(m)) {
          const away = Math.hypot(m.X(e.t) - X, m.Y(e.y) - Y);
          if (away < most) [best, most] = [e, away];
        }
        return best && { away: most, text: best.text };
      },
    };
  }

  // CA states: times of changes and the states' numbers; worse ones over better ones.
  function strip(ctx, m, states, top, height, colours, stop) {
    const { t, y } = states;
    const end = states.after(m.x1);
    const first = Math.max(states.after(m.x0) - 1, 0);
    ctx.globalAlpha = 1;
    ctx.fillStyle = css("--line");
    ctx.fillRect(m.left, top, m.width, height);
    for (let state = 1; state < STATES.length; state++) {
      ctx.fillStyle = colours[STATES[state]];
      for (let i = first; i < end; i++) {
        if (y[i] !== state) continue;
        const X = m.X(Math.max(t[i], m.x0)), right = m.X(i + 1 < t.length ? t[i + 1] : stop);
        ctx.fillRect(X, top, Math.max(right - X, devicePixelRatio), height);
      }
    }
  }

  // ---- panels ----

  class Board {
    // root: element; duration: of the whole axis, s; key: for uPlot's sync.
    constructor(root, duration, key) {
      Object.assign(this, { root, duration, key, plots: [], range: [0, duration], past: [] });
      this.listeners = [];
      addEventListener("resize", () => {
        for (const { plot, box } of this.plots) {
          plot.setSize({ width: box.clientWidth, height: plot.height });
        }
      });
    }
    onRange(listener) {
      this.listeners.push(listener);
    }
    clear() {
      for (const { plot } of this.plots) plot.destroy();
      this.plots = [];
      this.root.replaceChildren();
    }
    setRange(low, high, remember = true) {
      const width = Math.min(Math.max(high - low, LEAST), this.duration);
      const start = Math.min(Math.max(low, 0), this.duration - width);
      if (start === this.range[0] && start + width === this.range[1] && remember) return;
      if (remember) this.past.push(this.range);
      this.range = [start, start + width];
      for (const { plot } of this.plots) {
        plot.setScale("x", { min: this.range[0], max: this.range[1] });
      }
      for (const listener of this.listeners) listener(...this.range);
    }
    whole() {
      this.setRange(0, this.duration);
    }
    back() {
      const last = this.past.pop();
      if (last) this.setRange(...last, false);
    }
    zoom(factor) {
      const [low, high] = this.range, middle = (low + high) / 2, half = ((high - low) / 2) * factor;
      this.setRange(middle - half, middle + half);
    }
    move(part) {
      const by = (this.range[1] - this.range[0]) * part;
      this.setRange(this.range[0] + by, this.range[1] + by);
    }
    onKey(event) {
      const actions = {
        ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        Home: () => this.whole(), 0: () => this.whole(), Backspace: () => this.back(),
      };
      if (!(event.key in actions) || event.ctrlKey || event.metaKey) return;
      actions[event.key]();
      event.preventDefault();
    }

    // panel: {title, id, height, things, before(ctx, m), after(ctx, m), room (px above), zero,
    // limits(x0, x1), ticks (function for the y axis), note}
    add(panel) {
      const box = document.createElement("div");
      box.className = "panel";
      box.tabIndex = 0;
      if (panel.id) box.id = panel.id;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", panel.title);
      const head = document.createElement("h3");
      head.textContent = panel.title;
      const values = document.createElement("span");
      values.className = "values";
      head.append(values);
      box.append(head);
      box.addEventListener("keydown", (event) => this.onKey(event));
      this.root.append(box);
      const tip = document.createElement("div");
      tip.className = "tip";
      tip.hidden = true;
      const things = panel.things;
      const limits = (u) => {
        const [x0, x1] = this.range;
        if (panel.limits) return panel.limits(x0, x1);
        let low = Infinity, high = -Infinity;
        things.forEach((thing, i) => {
          if (u.series.length && !u.series[i + 1].show) return;
          const [a, b] = thing.extremes(x0, x1);
          low = Math.min(low, a);
          high = Math.max(high, b);
        });
        if (!(low <= high)) [low, high] = [0, 1];
        if (panel.zero) low = Math.min(low, 0);
        if (high === low) high = low + 1;
        const pad = (high - low) * 0.05, room = (panel.room || 0) / panel.height;
        return [panel.zero && low === 0 ? 0 : low - pad, (high + pad - low) / (1 - room) + low];
      };
      const painted = (u) => {
        const m = mapping(u), { ctx } = u;
        ctx.save();
        ctx.beginPath();
        ctx.rect(m.left, m.top, m.width, m.height);
        ctx.clip();
        things.forEach((thing, i) => {
          if (u.series[i + 1].show) thing.paint(ctx, m);
        });
        if (panel.after) panel.after(ctx, m);
        ctx.restore();
      };
      const cleared = (u) => {
        if (!panel.before) return;
        const m = mapping(u), { ctx } = u;
        ctx.save();
        ctx.beginPath();
        ctx.rect(m.left, m.top, m.width, m.height);
        ctx.clip();
        panel.before(ctx, m);
        ctx.restore();
      };
      const cursor = (u) => {
        const { left, top } = u.cursor;
        tip.hidden = true;
        if (left < 0 || left === undefined) {
          values.textContent = "";
          return;
        }
        const x = u.posToVal(left, "x");
        const texts = [];
        things.forEach((thing, i) => {
          const value = thing.read && u.series[i + 1].show ? thing.read(x) : NaN;
          if (typeof value === "string" ? value : value === value && value !== undefined) {
            const text = typeof value === "string" ? value : String(+value.toPrecision(5));
            texts.push(thing.label + " " + text);
          }
        });
        values.textContent = x.toFixed(6) + " s   " + texts.join("   ");
        if (!box.matches(":hover")) return;
        const m = mapping(u), dpr = devicePixelRatio;
        let best = null;
        things.forEach((thing, i) => {
          if (!thing.near || !u.series[i + 1].show) return;
          const found = thing.near(m, m.left + left * dpr, m.top + top * dpr);
          if (found && (!best || found.away < best.away)) best = found;
        });
        if (best) {
          tip.hidden = false;
          tip.textContent = best.text;
          tip.style.left = Math.min(left + 14, u.over.clientWidth - 260) + "px";
          tip.style.top = top + 14 + "px";
        }
      };
      const stroke = css("--ink");
      const lattice = { stroke: css("--line"), width: 1 };
      const plot = new uPlot({
        width: box.clientWidth || 900,
        height: panel.height,
        legend: { live: false, show: things.length > 0 && !panel.bare },
        cursor: {
          // Only the cursor's place is passed on; a zoom goes through setRange().
          sync: { key: this.key, setSeries: false,
            filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
          points: { show: false }, drag: { x: true, y: false, dist: 4, setScale: false },
          bind: { dblclick: () => () => { this.whole(); return null; } },
        },
        scales: {
          x: { time: false, min: this.range[0], max: this.range[1] },
          y: { range: (u) => limits(u) },
        },
        axes: [
          { stroke, grid: lattice, ticks: lattice, size: 34 },
          { stroke, grid: lattice, ticks: lattice, size: 70, ...(panel.ticks || {}) },
        ],
        series: [
          {},
          ...things.map((thing) => ({
            label: thing.label, stroke: thing.colour, fill: thing.fill ? thing.colour : undefined,
            dash: thing.dash, width: 2, paths: () => null, points: { show: false },
            show: thing.show !== false,
          })),
        ],
        hooks: {
          drawClear: [cleared],
          draw: [painted],
          setCursor: [cursor],
          setSelect: [(u) => {
            const { left, width } = u.select;
            if (width < 2) return;
            const from = u.posToVal(left, "x"), to = u.posToVal(left + width, "x");
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            this.setRange(from, to);
          }],
        },
      }, [[0, this.duration], ...things.map(() => [0, 1])], box);
      plot.over.append(tip);
      box.querySelectorAll(".u-series").forEach((row, i) => {
        const shape = things[i] && things[i].shape;
        if (shape) row.querySelector(".u-marker").replaceWith(symbol(things[i]));
      });
      this.plots.push({ plot, box, panel });
      return plot;
    }
    redraw() {
      for (const { plot } of this.plots) plot.redraw();
    }
  }

  // The mark as a picture for the legend.
  function symbol(look) {
    const canvas = document.createElement("canvas"), dpr = devicePixelRatio;
    canvas.width = canvas.height = 14 * dpr;
    canvas.className = "u-marker symbol";
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = look.colour;
    ctx.strokeStyle = css("--ink");
    ctx.lineWidth = 0.8 * dpr;
    shape(ctx, look.shape, 7 * dpr, 7 * dpr, 4.6 * dpr);
    return canvas;
  }

  // Shades impairments: [[start, end, text], ...].
  function shade(ctx, m, intervals) {
    ctx.fillStyle = css("--shade");
    for (const [start, end] of intervals) {
      const X = m.X(start), width = Math.max(m.X(end) - X, 2 * devicePixelRatio);
      ctx.fillRect(X, m.top, width, m.height);
    }
  }

  return { Board, Curve, STATES, css, dots, line, marks, rate, shade, strip, symbol, uprights };
})();
