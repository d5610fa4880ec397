// Anthropic's and OpenAI's npm packages and Vercel's AI SDK against running servers: messages and responses.
// Arguments: the real server's address, its model, the scripted server's address.
const assert = require("node:assert");
const Anthropic = require("@anthropic-ai/sdk");
const OpenAI = require("openai");
const { generateText, streamText, tool, jsonSchema, stepCountIs } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");

const [real, model, scripted] = process.argv.slice(2);
const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};
const TOLD = 'The tools say: Rome: warm; Øslo \\ "x": warm';

function without(value, names) {
  if (Array.isArray(value)) return value.map((each) => without(each, names));
  if (value === null || typeof value !== "object") return value;
  const kept = Object.entries(value).filter(([name, each]) => !names.includes(name) && each !== undefined);
  return Object.fromEntries(kept.map(([name, each]) => [name, without(each, names)]));
}

async function anthropic() {
  const client = new Anthropic({ baseURL: scripted, apiKey: "none", maxRetries: 0 });
  const tools = [{ name: "get_weather", description: "The weather.", input_schema: SCHEMA }];
  const asked = { model: "scripted", max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 }, tools };
  const messages = [{ role: "user", content: "WEATHER" }];
  const whole = await client.messages.create({ ...asked, messages });
  const streamed = await client.messages.stream({ ...asked, messages }).finalMessage();
  const own = ["id", "_request_id", "parsed_output"];
  assert.deepStrictEqual(without(streamed, own), without(whole, own));
  assert.deepStrictEqual(whole.content.map((block) => block.type), ["thinking", "text", "tool_use", "tool_use"]);
  const uses = whole.content.filter((block) => block.type === "tool_use");
  const content = uses.map((use) => ({ type: "tool_result", tool_use_id: use.id, content: `${use.input.city}: warm` }));
  const history = [...messages, { role: "assistant", content: whole.content }, { role: "user", content }];
  const told = await client.messages.create({ ...asked, messages: history });
  assert.strictEqual(told.content[0].text, TOLD);
  const counted = await client.messages.countTokens({ model: "scripted", messages: history, tools, thinking: asked.thinking });
  assert.strictEqual(counted.input_tokens, told.usage.input_tokens + told.usage.cache_read_input_tokens);
  await assert.rejects(client.messages.create({ ...asked, messages: [] }), (error) => {
    return error instanceof Anthropic.BadRequestError && error.error.error.type === "invalid_request_error";
  });
  const local = new Anthropic({ baseURL: real, apiKey: "none", maxRetries: 0 });
  const plain = { model, max_tokens: 8, messages: [{ role: "user", content: "Hello" }] };
  let text = "";
  const stream = local.messages.stream(plain).on("text", (piece) => (text += piece));
  assert.strictEqual((await stream.finalMessage()).content[0].text, text);
}

async function responses() {
  const client = new OpenAI({ baseURL: scripted + "/v1", apiKey: "none", maxRetries: 0 });
  const tools = [{ type: "function", name: "get_weather", parameters: SCHEMA, strict: false }];
  const asked = { model: "scripted", tools, input: "WEATHER" };
  const whole = await client.responses.create(asked);
  const streamed = await client.responses.stream(asked).finalResponse();
  const own = ["id", "call_id", "created_at", "completed_at", "_request_id", "parsed", "parsed_arguments", "output_parsed"];
  assert.deepStrictEqual(without(streamed, own), without(whole, own));
  const calls = whole.output.filter((item) => item.type === "function_call");
  const input = calls.map((call) => {
    return { type: "function_call_output", call_id: call.call_id, output: `${JSON.parse(call.arguments).city}: warm` };
  });
  const told = await client.responses.create({ ...asked, input, previous_response_id: whole.id });
  assert.strictEqual(told.output_text, TOLD);
  const format = { type: "json_schema", name: "person", schema: { type: "object" } };
  const parsed = await client.responses.parse({ model: "scripted", input: "JSON", text: { format } });
  assert.strictEqual(JSON.parse(parsed.output_text).name, "Ann");
}

async function vercel(name, model) {
  const cities = [];
  const tools = {
    get_weather: tool({
      description: "The weather.",
      inputSchema: jsonSchema(SCHEMA),
      execute: async ({ city }) => (cities.push(city), `${city}: warm`),
    }),
  };
  const asked = { model, tools, prompt: "WEATHER", stopWhen: stepCountIs(3), maxRetries: 0 };
  const whole = await generateText(asked);
  const stream = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.strictEqual(whole.text, TOLD, name);
  assert.ok(text.endsWith(TOLD) && (await stream.text) === TOLD, text);
  assert.deepStrictEqual(cities, ["Rome", 'Øslo \\ "x"', "Rome", 'Øslo \\ "x"'], name);
  assert.ok(whole.totalUsage.outputTokens > 0 && whole.finishReason === "stop");
}

async function main() {
  await anthropic();
  await responses();
  const claude = createAnthropic({ baseURL: scripted + "/v1", apiKey: "none" });
  await vercel("anthropic", claude("scripted"));
  const openai = createOpenAI({ baseURL: scripted + "/v1", apiKey: "none" });
  await vercel("responses", openai.responses("scripted"));
  await vercel("chat", openai.chat("scripted"));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
