// Prometheus text, and the few numbers of it that the live view draws.

import { own } from "./own.mjs";

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** Samples {name, labels, value} of an exposition. */
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (found) samples.push({ name: found[1], labels: labelsOf(found[2] ?? ""), value: Number(found[3]) });
  }
  return samples;
}

function labelsOf(text) {
  const unescape = (value) => value.replace(/\\[n"\\]/g, (escape) => own(ESCAPES, escape, escape));
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescape(value)]));
}

// What is read: [key, metric, how models come together].
const READ = [
  ["running", "tahr_requests_running", "sum"],
  ["waiting", "tahr_requests_waiting", "sum"],
  ["kvUse", "tahr_kv_cache_usage_ratio", "max"],
  ["nDecoded", "tahr_decode_tokens_total", "sum"],
  ["nPrefilled", "tahr_prefill_tokens_total", "sum"],
  ["nReused", "tahr_prefix_cache_saved_tokens_total", "sum"],
  ["nPrompt", "tahr_prefix_cache_queried_tokens_total", "sum"],
  ["nPreempted", "tahr_preemptions_total", "sum"],
  ["firstTokenSum", "tahr_time_to_first_token_seconds_sum", "sum"],
  ["firstTokenCount", "tahr_time_to_first_token_seconds_count", "sum"],
];
const JOIN = { sum: (a, b) => a + b, max: (a, b) => Math.max(a, b) };

/** The numbers of one moment (`at`: seconds), over all models. */
export function snapshot(samples, at) {
  const made = { at };
  for (const [key, metric, how] of READ) {
    made[key] = samples.filter((sample) => sample.name === metric).map((sample) => sample.value).reduce(JOIN[how], 0);
  }
  return made;
}

/** What is drawn of a moment and the one before it: gauges as they are, counters per second. */
export function point(now, before) {
  const seconds = before ? now.at - before.at : 0;
  const since = (key) => (before ? Math.max(0, now[key] - before[key]) : 0);
  const rate = (key) => (seconds > 0 ? since(key) / seconds : 0);
  const n = since("firstTokenCount");
  return {
    running: now.running,
    waiting: now.waiting,
    kvUse: now.kvUse * 100,
    decode: rate("nDecoded"),
    prefill: rate("nPrefilled"),
    hits: now.nPrompt ? (100 * now.nReused) / now.nPrompt : 0,
    firstToken: n ? since("firstTokenSum") / n : null,
  };
}

/** The points of a line through `values` in a box, newest at the right edge, as an SVG path. */
export function linePath(values, width, height, nSlots, top = Math.max(...values, 1e-9)) {
  const step = width / (nSlots - 1);
  const x = (i) => (width - (values.length - 1 - i) * step).toFixed(1);
  const y = (value) => (height - 1 - ((height - 2) * Math.min(value, top)) / top).toFixed(1);
  return values.map((value, i) => `${i ? "L" : "M"}${x(i)} ${y(value)}`).join("");
}
