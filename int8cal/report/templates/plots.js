"use strict";
// Histograms and the scales of single channels, drawn by uPlot: the first ones at once, so that they are on every picture
// and printout of the page; the many others when they come into view, and given up when they leave.
{
  const data = JSON.parse(document.getElementById("plots").textContent);
  const probe = document.createElement("i");
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const METHODS = new Set(["max", "percentile", "kl", "mse"]);
  const methodColour = (name) => colour(METHODS.has(name) ? `m-${name}` : "m-other");
  const tidy = (value) => String(Number(value.toPrecision(4)));
  const short = (count) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (count >= size) return tidy(count / size) + letter;
    return tidy(count);
  };
  const powers = (u, axis, low, high) => {
    const found = [];
    const step = Math.max(1, Math.ceil(Math.log10(high / low) / 6));
    for (let power = Math.ceil(Math.log10(low) - 1e-9); 10 ** power <= high * 1.0001; power += step) found.push(10 ** power);
    return found;
  };
  const ROW = 13; // CSS pixels of one method's line above the histogram

  // A chart that can be zoomed along x: by dragging, by buttons, by keys, and by the wheel once it has the focus.
  class Chart {
    constructor(place, full) {
      this.place = place;
      this.full = full;
      this.view = [...full];
      this.log = true;
      this.plot = null;
      place.tabIndex = 0;
      place.setAttribute("role", "group");
      const tools = document.createElement("p");
      tools.className = "tools";
      this.switch = this.button(tools, "Log", "Logarithmic axis", () => this.toggle());
      this.switch.setAttribute("aria-pressed", "true");
      this.button(tools, "−", "Zoom out", () => this.zoom(2));
      this.button(tools, "+", "Zoom in", () => this.zoom(0.5));
      this.button(tools, "Reset", "Reset the zoom", () => this.show(this.full));
      this.output = document.createElement("output");
      tools.append(this.output);
      this.body = document.createElement("div");
      place.append(this.body, tools);
      place.addEventListener("keydown", (event) => this.key(event));
      place.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      place.addEventListener("pointerdown", (event) => {
        if (!event.target.closest("button")) place.focus({ preventScroll: true });
      });
      this.tell();
    }

    button(tools, text, label, act) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      tools.append(button);
      return button;
    }

    draw() {
      if (this.plot || !this.place.clientWidth) return;
      const options = this.options();
      this.plot = new uPlot({
        width: this.place.clientWidth, height: 206, legend: { show: false }, ...options,
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: true, dist: 4 } },
        hooks: {
          ...options.hooks,
          setScale: [(u, key) => { if (key === "x") this.seen(u.scales.x.min, u.scales.x.max); }],
          setCursor: [(u) => this.tell(u.cursor.left >= 0 ? this.at(u.posToVal(u.cursor.left, "x")) : "")],
          ready: [(u) => u.over.addEventListener("dblclick", (event) => { event.stopPropagation(); this.show(this.full); }, true)],
        },
      }, this.values(), this.body);
      this.plot.setScale("x", { min: this.view[0], max: this.view[1] });
    }

    drop() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
    }

    redraw() {
      const drawn = this.plot !== null;
      this.drop();
      if (drawn) this.draw();
    }

    toggle() {
      this.log = !this.log;
      this.switch.setAttribute("aria-pressed", String(this.log));
      this.redraw();
    }

    show([low, high]) {
      const [first, last] = this.full;
      const width = Math.min(Math.max(high - low, (last - first) * 1e-3), last - first);
      const start = Math.min(Math.max((low + high - width) / 2, first), last - width);
      this.view = [start, start + width];
      if (this.plot) this.plot.setScale("x", { min: this.view[0], max: this.view[1] });
      this.tell();
    }

    seen(low, high) {
      // a drag may leave the data by a pixel, or be narrower than anything there is to see
      if (low < this.full[0] || high > this.full[1] || high - low < (this.full[1] - this.full[0]) * 0.999e-3) this.show([low, high]);
      this.view = [Math.max(low, this.full[0]), Math.min(high, this.full[1])];
      this.tell();
    }

    zoom(factor, centre = (this.view[0] + this.view[1]) / 2) {
      this.show([centre + (this.view[0] - centre) * factor, centre + (this.view[1] - centre) * factor]);
    }

    move(share) {
      const by = Math.min(Math.max((this.view[1] - this.view[0]) * share, this.full[0] - this.view[0]), this.full[1] - this.view[1]);
      this.show([this.view[0] + by, this.view[1] + by]);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const acts = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(this.full),
        Home: () => this.show(this.full), ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), l: () => this.toggle(), L: () => this.toggle() };
      if (!(event.key in acts)) return;
      event.preventDefault();
      acts[event.key]();
    }

    wheel(event) {
      // without the focus the wheel scrolls the page past the chart
      if (!this.plot || !(event.ctrlKey || event.metaKey || this.place.contains(document.activeElement))) return;
      event.preventDefault();
      const left = event.clientX - this.plot.over.getBoundingClientRect().left;
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.plot.posToVal(left, "x"));
    }

    tell(text = "") {
      this.place.dataset.low = this.view[0];
      this.place.dataset.high = this.view[1];
      this.output.textContent = text || this.shown(...this.view);
    }

    shown(low, high) {
      return `${tidy(low)} to ${tidy(high)}`;
    }

    axis(more) {
      const line = colour("line");
      return { stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: line, width: 1 },
        font: "12px system-ui, 'DejaVu Sans', sans-serif", ...more };
    }
  }

  class Histogram extends Chart {
    constructor(place, item) {
      const count = item.counts.length;
      const edges = item.edges.length > 2 || count === 1 ? item.edges
        : Array.from({ length: count + 1 }, (_, i) => item.edges[0] + ((item.edges[1] - item.edges[0]) * i) / count);
      const chosen = item.lines.find((line) => line[3]);
      super(place, [Math.min(edges[0], chosen[1]), Math.max(edges[count], chosen[2])]);
      Object.assign(this, { edges, counts: item.counts, lines: item.lines, chosen });
    }

    values() {
      const known = (count) => (this.log && count === 0 ? null : count);
      return [this.edges, [...this.counts.map(known), known(this.counts.at(-1))]];
    }

    options() {
      const range = (u, low, high) => {
        const top = Math.max(high ?? 1, 1);
        return this.log ? [0.5, top * 1.6] : [0, top * 1.06];
      };
      return {
        padding: [ROW * this.lines.length + 8, 10, 0, 0],
        scales: { x: { time: false, range: (u, low, high) => [low, high] }, y: { distr: this.log ? 3 : 1, range } },
        axes: [
          this.axis({ size: 26, gap: 3, values: (u, splits) => splits.map(tidy) }),
          this.axis({ size: 72, gap: 4, space: 24, values: (u, splits) => splits.map((value) => (value === null ? "" : short(value))),
            ...(this.log ? { splits: powers, filter: (u, splits) => splits } : {}) }),
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { drawClear: [(u) => this.shade(u)], draw: [(u) => this.bars(u), (u) => this.thresholds(u)] },
      };
    }

    at(value) {
      const bin = this.edges.findIndex((edge, i) => i && value < edge) - 1;
      if (bin < 0) return "";
      return `${tidy(this.edges[bin])} to ${tidy(this.edges[bin + 1])}: ${this.counts[bin].toLocaleString("en")}`;
    }

    place_(u, value) {
      const { left, width } = u.bbox;
      return Math.min(Math.max(u.valToPos(value, "x", true), left), left + width);
    }

    shade(u) {
      const from = this.place_(u, this.chosen[1]);
      u.ctx.fillStyle = colour("accent-soft");
      u.ctx.fillRect(from, u.bbox.top, this.place_(u, this.chosen[2]) - from, u.bbox.height);
    }

    bars(u) {
      const { ctx, bbox } = u;
      const base = bbox.top + bbox.height;
      const [kept, clipped] = [colour("good-bar"), colour("poor-bar")];
      const [, low, high] = this.chosen;
      const part = (from, to, count, fill) => {
        const [a, b] = [this.place_(u, from), this.place_(u, to)];
        if (!(b > a)) return;
        const top = Math.max(u.valToPos(count, "y", true), bbox.top);
        ctx.fillStyle = fill;
        ctx.fillRect(Math.floor(a), top, Math.max(Math.ceil(b) - Math.floor(a), 1.5 * devicePixelRatio), base - top);
      };
      const [first, last] = [u.scales.x.min, u.scales.x.max];
      this.counts.forEach((count, i) => {
        const [from, to] = [this.edges[i], this.edges[i + 1]];
        if (!count || to < first || from > last) return;
        part(from, Math.min(to, low), count, clipped);
        part(Math.max(from, low), Math.min(to, high), count, kept);
        part(Math.max(from, high), to, count, clipped);
      });
    }

    thresholds(u) {
      const { ctx, bbox } = u;
      const px = devicePixelRatio;
      const base = bbox.top + bbox.height;
      ctx.save();
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      this.lines.forEach(([name, low, high, chosen], row) => {
        const y = bbox.top - ROW * px * (this.lines.length - row - 0.5) - 4 * px;
        ctx.strokeStyle = methodColour(name);
        ctx.fillStyle = colour(chosen ? "ink" : "soft");
        ctx.font = `${chosen ? "bold " : ""}${11 * px}px system-ui, "DejaVu Sans", sans-serif`;
        const label = (chosen ? "✓ " : "") + name;
        ctx.fillText(label.length > 13 ? `${label.slice(0, 12)}…` : label, bbox.left - 6 * px, y);
        ctx.lineWidth = (chosen ? 2.5 : 1.25) * px;
        const stroke = (...points) => {
          ctx.beginPath();
          points.forEach(([a, b], i) => (i ? ctx.lineTo(a, b) : ctx.moveTo(a, b)));
          ctx.stroke();
        };
        const [a, b] = [this.place_(u, low), this.place_(u, high)];
        if (b > a) stroke([a, y], [b, y]);
        ctx.setLineDash(chosen ? [] : [4 * px, 3 * px]);
        ctx.lineWidth = (chosen ? 2 : 1.25) * px;
        for (const value of [low, high]) {
          if (value < u.scales.x.min || value > u.scales.x.max) continue;
          // outside the range, or the line at zero would hide the bar of all zeros
          const x = u.valToPos(value, "x", true) + (value === low ? -1 : 1) * ctx.lineWidth * 0.5;
          stroke([x, y - 4 * px], [x, base]);
        }
        ctx.setLineDash([]);
      });
      ctx.restore();
    }
  }

  class Channels extends Chart {
    constructor(place, item) {
      super(place, [-0.5, Math.max(item.count - 0.5, 0.5)]);
      Object.assign(this, { step: item.step, count: item.count, low: item.low, high: item.high ?? item.low });
    }

    values() {
      return [this.low.map((_, i) => i * this.step + (this.step - 1) / 2), this.low, this.high];
    }

    options() {
      const range = (u, low, high) => (this.log ? [(low ?? 1) / 1.3, (high ?? 1) * 1.3] : [0, (high ?? 1) * 1.06]);
      // one decade at least, or a linear axis would not find its powers of ten
      const splits = (u, axis, low, high) => {
        const found = [];
        for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1)
          for (const factor of [1, 2, 5]) if (factor * 10 ** power >= low && factor * 10 ** power <= high) found.push(factor * 10 ** power);
        return found.length > 8 ? powers(u, axis, low, high) : found;
      };
      const points = (name) => ({ paths: () => null, points: { show: true, size: 5, fill: colour(name), stroke: colour(name), filter: null } });
      return {
        padding: [10, 10, 0, 0],
        scales: { x: { time: false, range: (u, low, high) => [low, high] }, y: { distr: this.log ? 3 : 1, range } },
        axes: [
          this.axis({ size: 40, gap: 3, label: "output channel", labelSize: 16, labelGap: 0, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000], values: (u, s) => s.map(tidy) }),
          this.axis({ size: 64, gap: 4, values: (u, s) => s.map((value) => (value === null ? "" : tidy(value))),
            ...(this.log ? { splits, filter: (u, found) => found } : {}) }),
        ],
        series: [{}, points("good-bar"), points(this.step > 1 ? "poor-bar" : "good-bar")],
        hooks: {},
      };
    }

    shown(low, high) {
      return `channels ${Math.max(Math.ceil(low), 0)} to ${Math.floor(high)}`;
    }

    at(value) {
      const group = Math.floor((value + 0.5) / this.step);
      if (!(group in this.low)) return "";
      const first = group * this.step;
      if (this.step === 1) return `channel ${first}: ${tidy(this.low[group])}`;
      const last = Math.min(first + this.step, this.count) - 1;
      return `channels ${first} to ${last}: ${tidy(this.low[group])} to ${tidy(this.high[group])}`;
    }
  }

  const charts = new Map();
  const KEPT = 48; // charts that stay once they are drawn: 16 MB of pixels
  const places = [...document.querySelectorAll("[data-histogram]")];
  const stays = new Set(places.slice(0, KEPT));
  let printing = false;
  const draw = (place) => {
    if (place.closest("details:not([open])")) return;
    if (!charts.has(place)) charts.set(place, new Histogram(place, data.histograms[place.dataset.histogram]));
    charts.get(place).draw();
  };
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) draw(target); else if (!stays.has(target) && !printing) charts.get(target)?.drop();
    }
  }, { rootMargin: "600px" });
  for (const place of places) near.observe(place);
  stays.forEach(draw);
  for (const fold of document.querySelectorAll("details"))
    fold.addEventListener("toggle", () => stays.forEach((place) => { if (fold.contains(place)) draw(place); }));

  const select = document.getElementById("weights-of");
  if (select) {
    document.getElementById("channels").hidden = false;
    let place = document.getElementById("channel-chart");
    const change = (number) => {
      charts.get(place)?.drop();
      const fresh = place.cloneNode(false); // without the listeners of the weight before
      place.replaceWith(fresh);
      charts.delete(place);
      place = fresh;
      charts.set(place, new Channels(place, data.weights[number]));
      charts.get(place).draw();
    };
    select.addEventListener("change", () => change(select.value));
    change(select.value);
    for (const button of document.querySelectorAll("[data-show]")) {
      button.hidden = false;
      button.addEventListener("click", () => {
        select.value = button.dataset.show;
        change(select.value);
        place.scrollIntoView({ block: "center" });
        place.focus({ preventScroll: true });
      });
    }
  }

  const redraw = () => charts.forEach((chart) => chart.redraw());
  addEventListener("themed", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let widths = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(widths);
    widths = requestAnimationFrame(() => charts.forEach((chart) => {
      if (chart.plot && chart.place.clientWidth && chart.plot.width !== chart.place.clientWidth) chart.redraw();
    }));
  }).observe(document.querySelector("main"));

  // On paper: light, and every histogram that is not folded away.
  let theme;
  const print = () => {
    if (printing) return;
    printing = true;
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    places.forEach(draw);
    redraw();
  };
  const printed = () => {
    if (!printing) return;
    printing = false;
    if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
    redraw();
  };
  addEventListener("beforeprint", print);
  addEventListener("afterprint", printed);
  // whoever only takes on paper's styles sends no event of printing
  const paper = matchMedia("print");
  paper.addEventListener("change", () => (paper.matches ? print() : printed()));
  if (paper.matches) print();
}
