// Requests to the server this page came from. Addresses are relative, so the page also works below a path.

import { events, Reply } from "./stream.mjs";

let key = sessionStorage.getItem("tahr-key") ?? "";

/** The key of later requests; kept for this tab alone. */
export function setKey(text) {
  key = text.trim();
  sessionStorage.setItem("tahr-key", key);
}

export const currentKey = () => key;

function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const { message = `The server answered ${response.status}.`, code = "" } = body?.error ?? {};
  throw Object.assign(new Error(message), { code });
}

async function get(path) {
  try {
    return await fetch(path, { headers: headers(), cache: "no-store" });
  } catch {
    throw new Error("The server does not answer: is it still running?");
  }
}

export const models = async () => (await (await checked(await get("v1/models"))).json()).data;
export const metrics = async () => (await checked(await get("metrics"))).text();
export const health = async () => (await get("health")).json(); // 503 has a body too

/** Stream a reply; `onChange` is called with it whenever something has come. */
export async function chat(body, signal, onChange) {
  const reply = new Reply(performance.now());
  const sent = { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true };
  const response = await checked(
    await fetch("v1/chat/completions", {
      method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(sent), signal,
    }),
  );
  onChange(reply);
  for await (const event of events(texts(response.body))) {
    reply.add(event, performance.now());
    onChange(reply);
  }
  return reply;
}

async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}
