// Ollama's npm package against running servers. Arguments: the real one's address, its model, the scripted one's address.
const assert = require("node:assert");
const { Ollama } = require("ollama");

const [real, model, scripted] = process.argv.slice(2);
const options = { temperature: 0, num_predict: 8 };
const said = (content) => [{ role: "user", content }];

async function refused(work, status) {
  await assert.rejects(work, (error) => error.status_code === status || assert.fail(`${error.status_code} ${error}`));
}

async function checkReal(client) {
  assert((await client.list()).models.some((each) => each.model === model));
  assert((await client.show({ model })).capabilities.includes("completion"));
  assert.equal((await client.ps()).models[0].model, model);
  assert((await client.version()).version);
  const messages = said("Why is the sky blue?");
  const whole = await client.chat({ model, messages, options });
  let text = "", last;
  for await (const part of await client.chat({ model, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.equal(last.eval_count, whole.eval_count);
  const one = await client.generate({ model, prompt: "The sky is", raw: true, options });
  text = "";
  for await (const part of await client.generate({ model, prompt: "The sky is", raw: true, options, stream: true })) text += part.response;
  assert.equal(text, one.response);
  assert.equal((await client.embed({ model, input: ["a", "b"] })).embeddings.length, 2);
  assert((await client.embeddings({ model, prompt: "a" })).embedding.length);
  await client.copy({ source: model, destination: "copy" });
  await client.delete({ model: "copy" });
  await refused(client.generate({ model: "copy", prompt: "x" }), 404);
  await refused(client.pull({ model: "../../etc/passwd" }), 400);
  await refused(client.chat({ model, messages: [{ role: "user", content: "x", images: ["AAAA"] }] }), 400);
  const stream = await client.generate({ model, prompt: "Tell me a long story.", stream: true });
  for await (const part of stream) {
    stream.abort();
    break;
  }
}

async function checkScripted(client) {
  const parameters = { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } };
  const tools = [{ type: "function", function: { name: "get_weather", description: "", parameters } }];
  const asked = { model: "scripted", messages: said("WEATHER please"), tools, think: true };
  const whole = await client.chat(asked);
  assert.deepEqual(whole.message.tool_calls[0].function.arguments, { city: "Rome", days: 3 });
  const calls = [];
  for await (const part of await client.chat({ ...asked, stream: true })) calls.push(...(part.message.tool_calls ?? []));
  assert.deepEqual(calls.map((each) => each.function), whole.message.tool_calls.map((each) => each.function));
  const results = whole.message.tool_calls.map((each) => ({ role: "tool", content: "sunny", tool_name: each.function.name }));
  const last = await client.chat({ ...asked, messages: [...asked.messages, whole.message, ...results], think: false });
  assert(last.message.content.includes("sunny"));
}

(async () => {
  await checkReal(new Ollama({ host: real }));
  await checkScripted(new Ollama({ host: scripted }));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
