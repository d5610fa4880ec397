// OpenAI's npm package against a running server: models, a chat whole and streamed, an error.
"use strict";
const assert = require("node:assert");
const { OpenAI } = require("openai");

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0, timeout: 120000 });
const messages = [{ role: "user", content: "What is gravity?" }];

async function main() {
  const model = (await client.models.list()).data[0].id;
  const asked = { model, messages, temperature: 0, max_tokens: 24 };
  const whole = await client.chat.completions.create(asked);
  const text = whole.choices[0].message.content;
  assert.match(text, /ravity/);
  let parts = "", nChunks = 0, usage = null;
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })) {
    nChunks += 1;
    parts += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.strictEqual(parts, text);
  assert.ok(nChunks > 3);
  assert.strictEqual(usage.completion_tokens, whole.usage.completion_tokens);
  await assert.rejects(client.chat.completions.create({ ...asked, model: "absent" }), OpenAI.NotFoundError);
}

main().catch((error) => { console.error(error); process.exit(1); });
