// What a server sends while it replies: events of a stream, and the reply they add up to.

/** The JSON values of a stream of server-sent events, up to [DONE]. */
export async function* events(chunks) {
  let held = "";
  for await (const chunk of chunks) {
    held += chunk;
    const parts = held.split(/\r?\n\r?\n/);
    held = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data[0] === "[DONE]") return;
      if (data.length) yield JSON.parse(data.join("\n"));
    }
  }
}

/** A reply in the making. Times are milliseconds of one clock. */
export class Reply {
  constructor(began) {
    this.began = began;
    this.firstAt = 0;
    this.lastAt = 0;
    this.content = "";
    this.reasoning = "";
    this.toolCalls = [];
    this.tokens = []; // {text, logprob, top: [{text, logprob}]}, if they were asked for
    this.finish = null;
    this.usage = null;
    this.progress = null; // {processed, total} of the prefill
    this.model = "";
  }

  get isEmpty() {
    return !this.content && !this.reasoning && !this.toolCalls.length;
  }

  /** Add an event that came at `now`. */
  add(event, now) {
    if (event.error) throw new Error(event.error.message);
    this.model ||= event.model ?? "";
    this.usage = event.usage ?? this.usage;
    this.progress = event.prompt_progress ?? this.progress;
    const choice = event.choices?.[0];
    if (choice) this.#choice(choice, now);
  }

  #choice(choice, now) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    this.finish = choice.finish_reason ?? this.finish;
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const call of calls ?? []) this.#call(call);
    for (const token of choice.logprobs?.content ?? []) this.tokens.push(tokenOf(token));
    if (content || reasoning || calls) {
      this.firstAt ||= now;
      this.lastAt = now;
      this.progress = null;
    }
  }

  #call({ index, id, function: called }) {
    const call = (this.toolCalls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** How long it took and what it cost, as plain numbers. */
  get stats() {
    const n = this.usage?.completion_tokens ?? null;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return {
      firstTokenS: this.firstAt ? (this.firstAt - this.began) / 1000 : null,
      tokensPerS: n > 1 && seconds > 0 ? (n - 1) / seconds : null,
      nTokens: n,
      nPrompt: this.usage?.prompt_tokens ?? null,
      nCached: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }
}

function tokenOf({ token, logprob, top_logprobs: top }) {
  return { text: token, logprob, top: (top ?? []).map((each) => ({ text: each.token, logprob: each.logprob })) };
}

/** `12 prompt (3 cached) + 40 reply tokens · 31.2 tokens/s · first token after 0.21 s`, as far as it is known. */
export function statsLine({ nPrompt, nCached, nTokens, tokensPerS, firstTokenS }) {
  const cached = nCached ? ` (${nCached} cached)` : "";
  return [
    nTokens === null ? "" : `${nPrompt} prompt${cached} + ${nTokens} reply tokens`,
    tokensPerS === null ? "" : `${tokensPerS.toFixed(1)} tokens/s`,
    firstTokenS === null ? "" : `first token after ${firstTokenS.toFixed(2)} s`,
  ].filter(Boolean).join(" · ");
}
