// The plain data of the page: streams, metrics, conversations.
import assert from "node:assert";
import test from "node:test";
import * as chats from "../../../tahr/server/page/files/conversation.mjs";
import { areImages, bytesOf, isImage, MAX_IMAGES, smaller } from "../../../tahr/server/page/files/compose/images.mjs";
import { Attachments, cleanName, imagesAmong, MAX_BYTES, MAX_FILES, textOf, withFiles } from "../../../tahr/server/page/files/compose/attach.mjs";
import { linePath, parseMetrics, point, snapshot, totals } from "../../../tahr/server/page/files/metrics.mjs";
import { events, Reply, statsLine } from "../../../tahr/server/page/files/stream.mjs";

async function all(chunks) {
  const made = [];
  for await (const event of events(chunks)) made.push(event);
  return made;
}

test("events, cut anywhere", async () => {
  const text = ': keep-alive\n\ndata: {"a": "ä"}\n\ndata: {"b":\ndata: 2}\r\n\r\ndata: [DONE]\n\ndata: {"c": 3}\n\n';
  for (let size = 1; size < 20; size += 3) {
    const chunks = text.match(new RegExp(`[^]{1,${size}}`, "g"));
    assert.deepStrictEqual(await all(chunks), [{ a: "ä" }, { b: 2 }]);
  }
});

test("a reply adds up", () => {
  const reply = new Reply(1000);
  const add = (choice, now) => reply.add({ model: "m", choices: [choice] }, now);
  reply.add({ choices: [], prompt_progress: { processed: 5, total: 9 } }, 1100);
  assert.deepStrictEqual(reply.progress, { processed: 5, total: 9 });
  add({ delta: { role: "assistant", content: "" } }, 1200);
  assert.ok(reply.isEmpty && !reply.firstAt);
  add({ delta: { reasoning_content: "hm" } }, 1500);
  add({ delta: { content: "Hel" }, logprobs: { content: [{ token: "Hel", logprob: -0.1, top_logprobs: [{ token: "Ha", logprob: -2 }] }] } }, 2000);
  add({ delta: { tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "" } }] } }, 2100);
  add({ delta: { tool_calls: [{ index: 0, function: { arguments: '{"x":' } }] } }, 2200);
  add({ delta: { tool_calls: [{ index: 0, function: { arguments: "1}" } }] }, finish_reason: "tool_calls" }, 2500);
  reply.add({ choices: [], usage: { prompt_tokens: 7, completion_tokens: 11, prompt_tokens_details: { cached_tokens: 4 } } }, 2600);
  assert.deepStrictEqual([reply.content, reply.reasoning, reply.finish, reply.model], ["Hel", "hm", "tool_calls", "m"]);
  assert.deepStrictEqual(reply.toolCalls, [{ id: "c1", name: "f", arguments: '{"x":1}' }]);
  assert.deepStrictEqual(reply.tokens, [{ text: "Hel", logprob: -0.1, top: [{ text: "Ha", logprob: -2 }] }]);
  assert.strictEqual(statsLine(reply.stats), "7 prompt (4 cached) + 11 reply tokens · 10.0 tokens/s · first token after 0.50 s");
  assert.throws(() => reply.add({ error: { message: "It failed." } }, 2700), /It failed\./);
});

const EXPOSITION = `# HELP tahr_requests_running Sequences in the running batch.
# TYPE tahr_requests_running gauge
tahr_requests_running{model_name="a"} 2
tahr_requests_running{model_name="b \\"x\\" \\\\ }"} 1
tahr_kv_cache_usage_ratio{model_name="a"} 0.25
tahr_kv_cache_usage_ratio{model_name="b"} 0.5
tahr_decode_tokens_total{model_name="a"} 100
tahr_time_to_first_token_seconds_bucket{model_name="a",le="+Inf"} 4
tahr_time_to_first_token_seconds_sum{model_name="a"} 2
tahr_time_to_first_token_seconds_count{model_name="a"} 4
vllm:num_requests_running{model_name="a"} 2
`;

test("metrics", () => {
  const samples = parseMetrics(EXPOSITION);
  assert.strictEqual(samples.length, 9);
  assert.strictEqual(samples[1].labels.model_name, 'b "x" \\ }');
  const first = snapshot(samples, 10);
  assert.deepStrictEqual([first.running, first.kvUse, first.waiting], [3, 0.5, 0]);
  const second = { ...first, at: 12, nDecoded: 160, firstTokenSum: 5, firstTokenCount: 5 };
  const drawn = point(second, first);
  assert.deepStrictEqual([drawn.decode, drawn.kvUse, drawn.firstToken], [30, 50, 3]);
  assert.deepStrictEqual([point(first, null).decode, point(first, null).firstToken], [0, null]);
  assert.strictEqual(point({ ...first, at: 12, nDecoded: 0 }, first).decode, 0, "a server that began anew");
});

test("lines of a chart", () => {
  assert.strictEqual(linePath([0, 5, 10], 100, 42, 11, 10), "M80.0 41.0L90.0 21.0L100.0 1.0");
  assert.strictEqual(linePath([0], 100, 42, 11), "M100.0 41.0");
});

function talk() {
  const chat = chats.newConversation(1);
  const asked = chats.addTurn(chat, null, { role: "user", content: "one" });
  const first = chats.addTurn(chat, asked.id, { role: "assistant", content: "1" });
  const second = chats.addTurn(chat, asked.id, { role: "assistant", content: "2" });
  return { chat, asked, first, second };
}

test("an idle server has totals", () => {
  const text = `${EXPOSITION}tahr_kv_pages{model_name="a"} 100
tahr_kv_pages{model_name="b"} 10
tahr_request_decode_seconds_sum{model_name="a"} 4
tahr_prefix_cache_queried_tokens_total{model_name="a"} 2000
`;
  const said = totals(snapshot(parseMetrics(text), 1));
  assert.strictEqual(said.decode, "100 tokens, 25.0/s per request");
  assert.strictEqual(said.kvUse, "30 of 110 pages");
  assert.strictEqual(said.hits, "0 of 2,000 prompt tokens");
  assert.strictEqual(said.waiting, "waited: nobody yet");
});

test("attached files", () => {
  const bytes = (text) => new TextEncoder().encode(text);
  assert.strictEqual(textOf("a.txt", bytes("one\r\ntwo")), "one\ntwo");
  assert.throws(() => textOf("a.png", new Uint8Array([137, 80, 78, 71, 0, 255])), /a\.png is neither an image nor a text file/);
  assert.throws(() => textOf("a.bin", bytes("a\0b")), /nor a text file/);
  assert.throws(() => textOf("a.txt", new Uint8Array(MAX_BYTES + 1)), /larger than 200 kB/);
  const message = withFiles("Look:", [{ name: "a.py", text: "x = 1\n" }, { name: "b.md", text: "```\nx\n```" }]);
  assert.strictEqual(message, "Look:\n\na.py:\n```py\nx = 1\n```\n\nb.md:\n````md\n```\nx\n```\n````");
  assert.strictEqual(withFiles("", [{ name: "LICENSE", text: "a" }]), "LICENSE:\n```\na\n```");
  assert.strictEqual(cleanName("a\n```b`.txt"), "a b .txt");
  assert.strictEqual(cleanName("x".repeat(300)).length, 100);
});

test("branches", () => {
  const { chat, asked, first, second } = talk();
  assert.deepStrictEqual(chats.path(chat).map((turn) => turn.content), ["one", "2"]);
  assert.deepStrictEqual(chats.siblings(chat, first), [first, second]);
  chats.choose(chat, first);
  chats.addTurn(chat, first.id, { role: "user", content: "more" });
  assert.deepStrictEqual(chats.messages(chats.path(chat), "Be kind."), [
    { role: "system", content: "Be kind." }, { role: "user", content: "one" }, { role: "assistant", content: "1" }, { role: "user", content: "more" },
  ]);
  const copy = chats.fork(chat, first);
  assert.deepStrictEqual(chats.path(copy).map((turn) => turn.content), ["one", "1"]);
  assert.notStrictEqual(copy.id, chat.id);
  chats.dropTurn(chat, chats.path(chat).at(-1));
  assert.deepStrictEqual(chats.path(chat).map((turn) => turn.id), [asked.id, first.id]);
});

test("images among the results of tools", () => {
  const chat = chats.newConversation(1);
  const images = ["data:image/jpeg;base64,AAAA"];
  const made = chats.addTurn(chat, null, { role: "assistant", content: "", toolCalls: [{ id: "a", name: "f", arguments: "{}" }] });
  chats.addTurn(chat, made.id, { role: "tool", content: "seen", callId: "a", name: "f", images });
  const result = chats.messages(chats.path(chat))[1];
  assert.deepStrictEqual(result.content, [{ type: "image_url", image_url: { url: images[0] } }, { type: "text", text: "seen" }]);
});

test("a conversation of any length is refused before it is drawn", () => {
  const turns = Array.from({ length: chats.MAX_TURNS + 1 }, (_, id) => ({ id, parent: id ? id - 1 : null, role: "user", content: "" }));
  const text = (some) => chats.exported([{ ...chats.newConversation(1), turns: some }]);
  assert.throws(() => chats.imported(text(turns)), /more than 10000 messages/);
  assert.strictEqual(chats.imported(text(turns.slice(1).map((turn) => ({ ...turn, parent: null }))))[0].turns.length, chats.MAX_TURNS);
});

test("files that are chosen while others are read keep their order and their number", async () => {
  const said = [];
  const files = new Attachments((text) => said.push(text));
  files.show = () => undefined;
  const file = (name, delay) => ({
    name, type: "", size: 1, arrayBuffer: () => new Promise((done) => setTimeout(() => done(new Uint8Array([97])), delay)),
  });
  files.add([file("slow", 20), file("after", 0)]);
  for (let i = 0; i < MAX_FILES; i += 1) files.add([file(`f${i}`, 0)]);
  await files.adding;
  assert.deepStrictEqual(files.files.map((each) => each.name).slice(0, 3), ["slow", "after", "f0"]);
  assert.deepStrictEqual([files.files.length, said.length], [MAX_FILES, 2]);
});

test("tools", () => {
  const chat = chats.newConversation(1);
  const asked = chats.addTurn(chat, null, { role: "user", content: "x" });
  const calls = [{ id: "a", name: "f", arguments: "{}" }, { id: "b", name: "g", arguments: "{}" }];
  const made = chats.addTurn(chat, asked.id, { role: "assistant", content: "", toolCalls: calls });
  assert.deepStrictEqual(chats.openCalls(chats.path(chat)), calls);
  const result = chats.addTurn(chat, made.id, { role: "tool", content: "1", callId: "a", name: "f" });
  assert.deepStrictEqual(chats.openCalls(chats.path(chat)), [calls[1]]);
  chats.addTurn(chat, result.id, { role: "tool", content: "2", callId: "b", name: "g" });
  assert.deepStrictEqual(chats.openCalls(chats.path(chat)), []);
  assert.deepStrictEqual(chats.messages(chats.path(chat)).slice(1, 3), [
    { role: "assistant", content: "", tool_calls: [{ id: "a", type: "function", function: { name: "f", arguments: "{}" } }, { id: "b", type: "function", function: { name: "g", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "a", name: "f", content: "1" },
  ]);
});

test("files", () => {
  const { chat } = talk();
  const [again] = chats.imported(chats.exported([chat]));
  assert.deepStrictEqual({ ...again, id: chat.id }, chat);
  assert.notStrictEqual(again.id, chat.id, "an import never replaces what is there");
});

test("files that are none", () => {
  const { chat } = talk();
  const file = (change) => {
    const content = JSON.parse(chats.exported([structuredClone(chat)]));
    change(content, content.conversations[0]);
    return JSON.stringify(content);
  };
  const wrong = {
    "no JSON": "nope",
    "another format": "{}",
    "null": "null",
    "a later version": file((content) => (content.version = 2)),
    "no list": file((content) => (content.conversations = {})),
    "a role": file((_, each) => (each.turns[0].role = "system")),
    "a content": file((_, each) => (each.turns[0].content = { evil: 1 })),
    "a circle": file((_, each) => (each.turns[0].parent = each.turns[1].id)),
    "two with one id": file((_, each) => (each.turns[1].id = each.turns[0].id)),
    "calls": file((_, each) => (each.turns[1].toolCalls = [{ name: 1 }])),
    "tokens": file((_, each) => (each.turns[1].tokens = [{ text: "x", logprob: "1", top: [] }])),
    "no conversation": file((content) => (content.conversations[0] = null)),
  };
  for (const [name, text] of Object.entries(wrong)) assert.throws(() => chats.imported(text), /file/, name);
  const [kept] = chats.imported(file((_, each) => Object.assign(each.turns[0], { onclick: "x", __proto__: { y: 1 } })));
  assert.deepStrictEqual(Object.keys(kept.turns[0]), ["id", "parent", "role", "content"]);
});

const PIXEL = "data:image/jpeg;base64,/9j/AA==";

test("the oldest images can be left out, and the model is told", () => {
  const [a, b, c] = ["AAAA", "BBBB", "CCCC"].map((data) => `data:image/jpeg;base64,${data}`);
  const turns = [{ role: "user", content: "Both?", images: [a, b] }, { role: "assistant", content: "Yes." }, { role: "user", content: "", images: [c] }];
  const sent = (most) => chats.messages(turns, "", most).map(({ content }) =>
    typeof content === "string" ? content : content.map((part) => part.text ?? part.image_url.url));
  assert.strictEqual(chats.imageCount(turns), 3);
  assert.deepStrictEqual(sent(undefined), [[a, b, "Both?"], "Yes.", [c]]);
  assert.deepStrictEqual(sent(3), sent(undefined));
  assert.deepStrictEqual(sent(2), [[b, "(An earlier image is left out.)\n\nBoth?"], "Yes.", [c]]);
  assert.deepStrictEqual(sent(1), ["(An earlier image is left out.)\n\nBoth?", "Yes.", [c]]);
  assert.deepStrictEqual(turns[0].images, [a, b], "nothing is lost here");
  const refused = { code: "too_many_images", message: "messages[2].content[0] is image 33 of 34, but a request may have 32: leave some out." };
  assert.strictEqual(chats.mostImages(refused), 32);
  assert.ok(Number.isNaN(chats.mostImages({ code: "", message: refused.message })));
});

test("images go before the text of their message", () => {
  const files = [{ name: "a.png", image: PIXEL }, { name: "b.txt", text: "x" }];
  assert.deepStrictEqual(imagesAmong(files), [PIXEL]);
  assert.strictEqual(withFiles("What?", files), "What?\n\nb.txt:\n```txt\nx\n```");
  const turn = { role: "user", content: "What?", images: [PIXEL] };
  const shown = { type: "image_url", image_url: { url: PIXEL } };
  assert.deepStrictEqual(chats.messages([turn])[0].content, [shown, { type: "text", text: "What?" }]);
  assert.deepStrictEqual(chats.messages([{ ...turn, content: "" }])[0].content, [shown]);
  assert.strictEqual(chats.messages([{ ...turn, images: [] }])[0].content, "What?");
});

test("images are made small and keep their shape", () => {
  assert.deepStrictEqual(smaller(4096, 1024), [2048, 512]);
  assert.deepStrictEqual(smaller(640, 480), [640, 480]);
  assert.deepStrictEqual(smaller(100_000, 1), [2048, 1]);
  assert.deepStrictEqual([...bytesOf(PIXEL)], [255, 216, 255, 0]);
  assert.ok(isImage({ type: "image/png" }) && !isImage({ type: "image/svg+xml" }) && !isImage({ type: "text/html" }));
});

test("a file of conversations holds no other images", () => {
  assert.ok(areImages([PIXEL]) && areImages([]) && !areImages(Array(MAX_IMAGES + 1).fill(PIXEL)));
  for (const wrong of ["https://a.b/c.png", "data:image/svg+xml;base64,AAAA", "data:text/html;base64,AAAA", `${PIXEL}\n`, "", 5, null]) {
    assert.ok(!areImages([wrong]), String(wrong));
  }
  const conversation = chats.newConversation();
  chats.addTurn(conversation, null, { role: "user", content: "a", images: [PIXEL] });
  const [back] = chats.imported(chats.exported([conversation]));
  assert.deepStrictEqual(back.turns[0].images, [PIXEL]);
  conversation.turns[0].images = ["https://a.b/c.png"];
  assert.throws(() => chats.imported(chats.exported([conversation])), /damaged/);
});
