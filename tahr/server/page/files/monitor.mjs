// The live view of the server: /metrics once a second, drawn; /health for its state.

import { health, metrics } from "./api.mjs";
import { $, el, svg } from "./dom.mjs";
import { linePath, parseMetrics, point, snapshot, totals } from "./metrics.mjs";

const N_POINTS = 60;
const EVERY_MS = 1000;
const WIDTH = 240;
const HEIGHT = 44;
const whole = (value) => String(Math.round(value));
const share = (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`;

// Title, what it means, key of a point, how it is written, greatest value (null: of what is shown).
const CHARTS = [
  ["Running", "sequences in the batch", "running", whole, null],
  ["Waiting", "sequences in the queue", "waiting", whole, null],
  ["Decode", "tokens per second", "decode", whole, null],
  ["Prefill", "tokens per second", "prefill", whole, null],
  ["KV cache", "pages in use", "kvUse", share, 100],
  ["Prefix cache", "tokens reused", "hits", share, 100],
];

export class Monitor {
  constructor() {
    this.before = null;
    this.points = [];
    this.timer = null;
    this.facts = el("dl", { class: "facts" });
    this.problem = el("p", { class: "error", role: "alert" });
    this.charts = CHARTS.map((row) => new Chart(...row));
    $("server").replaceChildren(this.problem, el("div", { class: "charts" }, ...this.charts.map((chart) => chart.element)), this.facts);
  }

  start() {
    this.stop();
    this.timer = setInterval(() => document.hidden || this.read(), EVERY_MS);
    this.read();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.before = null; // a rate over the time nobody looked would be a mean of it
  }

  async read() {
    try {
      const now = snapshot(parseMetrics(await metrics()), performance.now() / 1000);
      this.points = [...this.points, point(now, this.before)].slice(-N_POINTS);
      this.before = now;
      for (const chart of this.charts) chart.draw(this.points, totals(now));
      this.showFacts(await health());
      this.problem.textContent = "";
    } catch (error) {
      this.problem.textContent = error.message;
    }
  }

  showFacts(report) {
    const times = this.points.map((each) => each.firstToken).filter((each) => each !== null);
    const rows = [
      ["State", report.status],
      ["Version", report.version],
      ["First token", times.length ? `${(times.reduce((a, b) => a + b) / times.length).toFixed(2)} s, mean of this minute` : "no request in this minute"],
      ["Requests", `${report.scheduler.successful_requests} done, ${report.scheduler.failed_requests} failed, ${report.scheduler.cancelled_requests} cancelled`],
      ["Preemptions", whole(report.scheduler.preemptions)],
      ["Models", Object.keys(report.models).join(", ")],
    ];
    this.facts.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }
}

class Chart {
  constructor(title, meaning, key, written, most) {
    Object.assign(this, { key, written, most });
    this.value = el("output", {});
    this.total = el("p", { class: "total" });
    this.line = svg("path", { class: "line" });
    this.area = svg("path", { class: "area" });
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line);
    this.element = el("section", { class: "chart" }, el("h3", {}, title, el("small", {}, meaning)), this.value, picture, this.total);
  }

  draw(points, total) {
    const values = points.map((each) => each[this.key]);
    const path = linePath(values, WIDTH, HEIGHT, N_POINTS, this.most ?? Math.max(...values, 1));
    const left = WIDTH - (values.length - 1) * (WIDTH / (N_POINTS - 1));
    this.value.textContent = this.written(values.at(-1));
    this.total.textContent = total[this.key];
    this.line.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L${WIDTH} ${HEIGHT}L${left.toFixed(1)} ${HEIGHT}Z`);
  }
}
