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
  ["nPages", "tahr_kv_pages", "sum"],
  ["nDone", "tahr_requests_total", "sum"],
  ["queueSum", "tahr_request_queue_seconds_sum", "sum"],
  ["queueCount", "tahr_request_queue_seconds_count", "sum"],
  ["decodeSum", "tahr_request_decode_seconds_sum", "sum"],
  ["prefillSum", "tahr_request_prefill_seconds_sum", "sum"],
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
  made.nUsed = usedPages(samples);
  return made;
}

function usedPages(samples) {
  const pages = new Map(samples.filter((sample) => sample.name === "tahr_kv_pages").map((sample) => [sample.labels.model_name, sample.value]));
  const shares = samples.filter((sample) => sample.name === "tahr_kv_cache_usage_ratio");
  return shares.reduce((used, { labels, value }) => used + value * (pages.get(labels.model_name) ?? 0), 0);
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

const count = (n) => Math.round(n).toLocaleString("en");
const speed = (n, seconds) => (n > 0 && seconds > 0 ? `, ${(n / seconds).toFixed(1)}/s per request` : "");

/** What the cards say since the server started, which an idle server has as well. */
export function totals(now) {
  const wait = now.queueCount ? `${(now.queueSum / now.queueCount).toFixed(2)} s on average` : "nobody yet";
  return {
    running: `${count(now.nDone)} replies since the start`,
    waiting: `waited: ${wait}`,
    decode: `${count(now.nDecoded)} tokens${speed(now.nDecoded, now.decodeSum)}`,
    prefill: `${count(now.nPrefilled)} tokens${speed(now.nPrefilled, now.prefillSum)}`,
    kvUse: `${count(now.nUsed)} of ${count(now.nPages)} pages`,
    hits: `${count(now.nReused)} of ${count(now.nPrompt)} prompt tokens`,
  };
}

/** The points of a line through `values` in a box, newest at the right edge, as an SVG path. */
export function linePath(values, width, height, nSlots, top = Math.max(...values, 1e-9)) {
  const step = width / (nSlots - 1);
  const x = (i) => (width - (values.length - 1 - i) * step).toFixed(1);
  const y = (value) => (height - 1 - ((height - 2) * Math.min(value, top)) / top).toFixed(1);
  return values.map((value, i) => `${i ? "L" : "M"}${x(i)} ${y(value)}`).join("");
}
