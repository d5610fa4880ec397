// The chat page in headless Chromium. With a real model: a streamed reply, stop, errors, the live view. With a scripted
// one: hostile replies, thinking, tools, branches, probabilities, files, keys. On a desktop and on a phone.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");

const [real, scripted, browser, pictures] = process.argv.slice(2);
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const SCREENS = { desktop: { width: 1200, height: 760 }, phone: { width: 375, height: 667 } };
const COUNT = "Count from one to one thousand, one number per line, and do not stop before.";
const TOOLS = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];

const lastReply = (page) => page.locator(".turn.assistant .body").last();
const lastTurn = (page) => page.locator(".turn").last();
const press = (page, label) => lastTurn(page).getByLabel(label, { exact: true }).click();

async function picture(page, name) {
  await page.screenshot({ path: path.join(pictures, `${name}.png`) });
}

async function idle(page) {
  await page.waitForSelector("#send:visible", { timeout: 60000 });
}

async function ask(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

async function answered(page, text) {
  await ask(page, text);
  await page.waitForSelector("#stop:visible", { timeout: 3000 }).catch(() => undefined); // it may have been quick
  await idle(page);
}

async function set(page, values) {
  await page.click("#show-parameters");
  for (const [id, value] of Object.entries(values)) {
    if (typeof value === "boolean") await page.setChecked(`#${id}`, value);
    else await page.fill(`#${id}`, value);
  }
  await page.click("#close-panel");
}

async function restart(page) {
  await page.press("#text", "Alt+n");
  await page.waitForSelector(".welcome");
}

// ---- with a real model ----------------------------------------------------------------------------------------------

// What a small model counts may end at any moment; these replies go on until somebody ends them.
async function goOn(page) {
  await page.route("**/v1/chat/completions", (route) => {
    const body = JSON.parse(route.request().postData());
    return route.continue({ postData: JSON.stringify({ ...body, ignore_eos: true }) });
  });
}

const grows = (page) => page.waitForFunction(() => [...document.querySelectorAll(".turn.assistant .body")].at(-1)?.textContent.length > 20);

async function streams(page) {
  await set(page, { max_tokens: "128", temperature: "0" });
  await ask(page, "What is gravity?");
  await page.waitForFunction(() => document.querySelector(".turn.assistant .markdown")?.textContent.length > 0);
  assert.ok(await page.isVisible("#stop"), "a reply that has begun still comes");
  const early = await lastReply(page).textContent();
  await idle(page);
  const text = await lastReply(page).textContent();
  assert.ok(text.length > early.length, "the reply grew");
  assert.match(text, /ravity/);
  const stats = await page.locator(".turn.assistant .stats").last().textContent();
  assert.match(stats, /\d+ prompt( \(\d+ cached\))? \+ 128 reply tokens · [\d.]+ tokens\/s · first token after [\d.]+ s/);
}

async function watches(page) {
  await set(page, { max_tokens: "1500" });
  await ask(page, COUNT);
  await page.click("#show-server");
  const value = (i) => page.locator(".chart output").nth(i).textContent();
  await page.waitForFunction(() => [...document.querySelectorAll(".chart output")].map((each) => parseFloat(each.textContent)).filter((_, i) => [0, 2, 4].includes(i)).every((n) => n > 0), null, { timeout: 20000 });
  assert.strictEqual(await value(0), "1", "one sequence runs");
  assert.match(await page.textContent(".facts"), /State(ok|busy)/);
  await page.waitForTimeout(2500);
  await picture(page, `server-${page.viewportSize().width > 600 ? "desktop" : "phone"}`);
  await page.click("#close-panel");
}

async function stops(page) {
  await grows(page);
  await page.click("#stop");
  await idle(page);
  const text = await lastReply(page).textContent();
  await page.waitForTimeout(800);
  assert.strictEqual(await lastReply(page).textContent(), text, "nothing comes after stop");
  assert.match(await page.locator(".turn.assistant .stats").last().textContent(), /stopped/);
  const health = await (await page.request.get(`${real}/health`)).json();
  assert.strictEqual(health.admission.active_requests, 0, "the server has freed it");
}

async function tellsErrors(page) {
  const n = await page.locator(".turn").count();
  await set(page, { max_tokens: "100000000" });
  await answered(page, "Hello");
  assert.match(await page.textContent("#notice-text"), /max_tokens/);
  assert.strictEqual(await page.inputValue("#text"), "Hello", "what was refused can be sent again");
  assert.strictEqual(await page.locator(".turn").count(), n, "no empty turn is left behind");
}

async function startsAnew(page) {
  await set(page, { max_tokens: "1500" });
  await ask(page, COUNT);
  await grows(page);
  await restart(page);
  await set(page, { max_tokens: "8" });
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await ask(page, "Hello");
  const { messages } = (await sent).postDataJSON();
  assert.deepStrictEqual(messages, [{ role: "user", content: "Hello" }], "nothing of the old chat is in the new one");
  await page.waitForFunction(() => document.querySelector(".turn.assistant .stats")?.textContent.includes("8 reply tokens"));
  assert.strictEqual(await page.locator("#conversations li.running").count(), 1, "the other conversation goes on meanwhile");
}

// ---- with a scripted model ------------------------------------------------------------------------------------------

async function showsMarkdown(page) {
  await answered(page, "MARKDOWN, please");
  const body = lastReply(page);
  const counts = { h2: 1, strong: 2, em: 1, "ol > li": 2, "ol ul li": 1, "li.task": 2, "table td": 4, "figure.code": 1, blockquote: 1, "p a": 2, ".code-keyword": 2 };
  for (const [selector, n] of Object.entries(counts)) assert.ok((await body.locator(selector).count()) >= n, `${selector} is there`);
  const link = body.locator("a").first();
  assert.deepStrictEqual([await link.getAttribute("rel"), await link.getAttribute("target")], ["noopener noreferrer nofollow", "_blank"]);
  await body.getByLabel("Copy code").click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(copied.startsWith("# how high\ndef height") && copied.endsWith("else 0"), copied);
  await picture(page, `markdown-${page.viewportSize().width > 600 ? "desktop" : "phone"}`);
}

const kind = (page) => (page.viewportSize().width > 600 ? "desktop" : "phone");

async function showsMath(page) {
  await restart(page);
  await answered(page, "MATH");
  const body = lastReply(page);
  assert.strictEqual(await body.locator(".math").count(), 7, "every formula but the wrong one is drawn");
  assert.strictEqual(await body.locator(".math.display").count(), 4);
  assert.strictEqual(await body.locator("ol .math.display mtd").count(), 4, "a matrix in a list");
  assert.deepStrictEqual(await body.locator("code").allTextContents(), ["\\(x\\)", "\\(\\frac{a}\\)"]);
  assert.match(await body.textContent(), /for \$5 or \$10/);
  assert.strictEqual(await body.locator("em").count(), 0, "Markdown leaves formulas alone");
  const fonts = await page.evaluate(async () => (await document.fonts.ready, [...document.fonts].filter((each) => each.status === "loaded").map((each) => each.family)));
  assert.ok(fonts.includes("KaTeX_Main") && fonts.includes("KaTeX_Math"), fonts.join());
  const arrow = await body.locator(".katex-overlay svg").evaluate((each) => each.style.width);
  assert.match(arrow, /em$/, "styles set by a script reach the copy that is shown");
  await fits(page);
  await page.locator("#thread").evaluate((each) => (each.scrollTop = 0));
  await picture(page, `math-${kind(page)}`);
}

/** A formula is as hostile as the rest of a reply. */
async function boundsMath(page) {
  await restart(page);
  await answered(page, "EVILMATH");
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    made: document.querySelectorAll("#thread :is(script, img, a, iframe, form)").length,
    fixed: [...document.querySelectorAll("#thread *")].filter((each) => getComputedStyle(each).position === "fixed").length,
  }));
  assert.deepStrictEqual(found, { hacked: undefined, made: 0, fixed: 0 });
  const text = await lastReply(page).textContent();
  assert.ok(text.includes("\\def\\a{\\a\\a}\\a") && text.includes("{".repeat(10_000)) && text.endsWith("and \\(unfinished"), "what is not drawn is shown");
  await fits(page);
}

async function begins(page) {
  await restart(page);
  await fits(page);
  await picture(page, `empty-${kind(page)}`);
  assert.strictEqual(await page.locator(".starter").count(), 4);
  const heading = await page.locator(".welcome h1").boundingBox();
  const header = await page.locator("header").boundingBox();
  assert.ok(heading.y >= header.y + header.height, "the greeting begins below the header");
  await page.locator(".starter").first().click();
  assert.match(await page.inputValue("#text"), /^Explain how/, "a prompt can be changed before it is sent");
  await page.fill("#text", "");
}

// An image of one pixel.
const DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async function attachesFiles(page) {
  const choose = async (files) => {
    const choosing = page.waitForEvent("filechooser");
    await page.click("#attach");
    const given = files.map(([name, content, mimeType = "application/octet-stream"]) => ({ name, mimeType, buffer: Buffer.from(content) }));
    await (await choosing).setFiles(given);
  };
  await choose([["notes.py", "a = 1\n"], ["second.txt", "two"]]);
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 2);
  await page.getByLabel("Remove second.txt").click();
  await choose([["picture.png", [137, 80, 0, 255]]]);
  await page.waitForFunction(() => document.querySelector("#notice-text").textContent.includes("picture.png is neither an image nor a text file"));
  await choose([["dot.png", Buffer.from(DOT, "base64"), "image/png"]]);
  await page.waitForFunction(() => document.querySelector("#files img.sent")?.naturalWidth === 1);
  await page.getByLabel("Remove dot.png").click();
  await choose([["large.txt", "x".repeat(200_001)]]);
  await page.waitForFunction(() => document.querySelector("#notice-text").textContent.includes("larger than 200 kB"));
  assert.deepStrictEqual(await page.locator("#files li").allTextContents(), ["notes.py"]);
  await picture(page, `files-${kind(page)}`);
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await answered(page, "What is this?");
  assert.strictEqual((await sent).postDataJSON().messages.at(-1).content, "What is this?\n\nnotes.py:\n```py\na = 1\n```");
  assert.ok(await page.isHidden("#files"), "files are sent once");
}

/** A server that takes one image in a request: the page says so, and offers to leave out the oldest. */
async function leavesImagesOut(page) {
  await restart(page);
  const sent = [];
  await page.route("**/v1/chat/completions", (route) => {
    const body = JSON.parse(route.request().postData());
    const parts = body.messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
    const n = parts.filter((part) => part.type === "image_url").length;
    sent.push(n);
    if (n > 1) {
      const message = `messages[2].content[0] is image 2 of ${n}, but a request may have 1: leave some out.`;
      return route.fulfill({ status: 400, json: { error: { message, code: "too_many_images" } } });
    }
    for (const each of body.messages) if (Array.isArray(each.content)) each.content = each.content.map((part) => part.text ?? "").join("");
    return route.continue({ postData: JSON.stringify(body) });
  });
  const show = async (text) => {
    const choosing = page.waitForEvent("filechooser");
    await page.click("#attach");
    await (await choosing).setFiles([{ name: "dot.png", mimeType: "image/png", buffer: Buffer.from(DOT, "base64") }]);
    await page.waitForSelector("#files img.sent");
    await answered(page, text);
  };
  await show("first");
  await show("second");
  await page.waitForFunction(() => /has 2 images, and the server takes 1/.test(document.querySelector("#notice-text").textContent));
  assert.strictEqual(await page.inputValue("#text"), "second", "the message is there again");
  await picture(page, `images-${kind(page)}`);
  await page.getByRole("button", { name: "Leave the oldest image out" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".turn.assistant").length === 2);
  await idle(page);
  assert.ok(await page.isHidden("#notice"));
  assert.deepStrictEqual(sent, [1, 2, 1]);
  assert.strictEqual(await page.locator(".turn.user img.sent").count(), 2, "both are still shown");
  await page.unroute("**/v1/chat/completions");
}

async function showsAnIdleServer(page) {
  await page.click("#show-server");
  await page.waitForFunction(() => /^[1-9]\d* replies since the start$/.test(document.querySelector(".chart .total")?.textContent));
  for (const text of await page.locator(".chart .total").allTextContents()) assert.match(text, /\d|nobody yet/);
  await picture(page, `idle-${kind(page)}`);
  await page.click("#close-panel");
}

/** A message that cannot be drawn hides no other, also when its conversation is opened again. */
async function survivesBrokenMessages(page) {
  await restart(page);
  await answered(page, "BROKEN");
  const shown = async () => (await page.locator(".turn.assistant .body").allTextContents()).join(" ");
  assert.match(await shown(), /Before\.[^]*x = 1[^]*After\./);
  await page.evaluate(async () => {
    const asked = indexedDB.open("tahr", 1);
    await new Promise((resolve) => (asked.onsuccess = resolve));
    const turns = [
      { id: 0, parent: null, role: "user", content: "one" },
      { id: 1, parent: 0, role: "assistant", content: "a reply whose calls are damaged", toolCalls: [{ id: "x" }, 7], tokens: 5, reasoning: 5 },
      { id: 2, parent: 1, role: "constructor", content: "two" },
      { id: 3, parent: 2, role: "assistant", content: null },
      { id: 4, parent: 3, role: "assistant", content: "the last reply" },
    ];
    const table = asked.result.transaction("conversations", "readwrite").objectStore("conversations");
    const put = table.put({ id: "damaged", title: "damaged one", isNamed: true, created: 1, updated: Date.now() + 1e6, turns, chosen: {} });
    await new Promise((resolve) => (put.onsuccess = resolve));
    asked.result.close();
  });
  await page.reload();
  await openSidebar(page);
  await page.locator("#conversations .open", { hasText: "damaged one" }).click();
  await page.waitForFunction(() => document.querySelector("#thread").textContent.includes("the last reply"));
  assert.match(await page.textContent("#thread"), /one[^]*a reply whose calls are damaged[^]*two[^]*the last reply/);
  assert.strictEqual(await page.locator(".turn").count(), 5);
  await openSidebar(page);
  const row = page.locator("#conversations li").first();
  await row.hover();
  await row.getByLabel(/^Delete/).click();
  await row.getByRole("button", { name: "Delete" }).click();
  await page.keyboard.press("Escape");
}

/** Nothing a model writes runs, loads, leaves the page or takes its shape away. */
async function isSafe(page) {
  for (const text of ["HOSTILE", "TOOL and more", "THINK about it", "DEEP"]) await answered(page, text);
  await page.waitForTimeout(200);
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    made: document.querySelectorAll("#thread :is(script, iframe, img, style, meta, object, embed, form, base, link)").length,
    links: [...document.querySelectorAll("#thread a")].map((each) => each.protocol),
    handlers: [...document.querySelectorAll("#thread *")].filter((each) => [...each.attributes].some((a) => /^on|^style$/i.test(a.name))).length,
    isShown: getComputedStyle(document.body).display,
  }));
  assert.deepStrictEqual({ ...found, links: [...new Set(found.links)] }, { hacked: undefined, made: 0, links: ["https:"], handlers: 0, isShown: "block" });
  const refused = await page.evaluate(() => {
    try {
      document.createElement("div").innerHTML = "<b>x</b>";
      return "allowed";
    } catch {
      return "refused";
    }
  });
  assert.strictEqual(refused, "refused", "the policy lets no text become HTML");
}

async function folds(page) {
  await restart(page);
  await answered(page, "THINK");
  const details = lastReply(page).locator("details.thinking");
  assert.strictEqual(await details.getAttribute("open"), null, "thinking is folded");
  assert.match(await details.textContent(), /First I weigh it\.\s*<b>no tag<\/b>/);
  assert.match(await lastReply(page).locator("> .markdown").textContent(), /^The answer is 42\.$/);
}

async function callsTools(page) {
  await set(page, { tools: JSON.stringify(TOOLS) });
  await answered(page, "TOOL");
  const shown = await lastReply(page).locator("figure.call").textContent();
  assert.match(shown, /calls get_weather[^]*"city": "Rome <img src=x/);
  assert.strictEqual(await page.getAttribute("#text", "placeholder"), "Result of get_weather");
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await answered(page, "31 degrees");
  const { messages } = (await sent).postDataJSON();
  assert.deepStrictEqual(messages.slice(-2).map((each) => each.role), ["assistant", "tool"]);
  assert.strictEqual(messages.at(-1).tool_call_id, messages.at(-2).tool_calls[0].id);
  assert.match(await lastReply(page).textContent(), /The tool says: 31 degrees/);
  await picture(page, `tools-${page.viewportSize().width > 600 ? "desktop" : "phone"}`);
  await set(page, { tools: "" });
}

async function branches(page) {
  await restart(page);
  await answered(page, "first question");
  await press(page, "Regenerate");
  await idle(page);
  await page.waitForSelector(".branches");
  assert.match(await lastTurn(page).locator(".branches").textContent(), /2\/2/);
  await press(page, "Earlier branch");
  assert.match(await lastTurn(page).locator(".branches").textContent(), /1\/2/);
  const question = page.locator(".turn.user").first();
  await question.getByLabel("Edit and send again").click();
  await question.locator("textarea").fill("another question");
  await question.getByRole("button", { name: "Send" }).click();
  await page.waitForFunction(() => document.querySelector("#thread").textContent.includes("You said: another question"));
  await idle(page);
  assert.match(await page.locator(".turn.user .branches").textContent(), /2\/2/);
  await page.locator(".turn.user").getByLabel("Earlier branch").click();
  assert.match(await lastReply(page).textContent(), /You said: first question/, "the other branch is still there");
  await press(page, "Continue from here in a new conversation");
  assert.strictEqual(await page.locator(".turn").count(), 2);
  assert.strictEqual(await page.locator("#conversations li").first().locator(".open").textContent(), "first question (branch)");
}

async function showsProbabilities(page) {
  await restart(page);
  await set(page, { logprobs: true });
  await answered(page, "Hello");
  await press(page, "Token probabilities");
  assert.strictEqual(await page.locator(".token").allTextContents().then((all) => all.join("")), "You said: Hello");
  await page.locator(".token").nth(1).hover();
  const rows = await page.locator("#hint tr").allTextContents();
  assert.ok(rows.length === 5 && /^o\d+ %$/.test(rows[0]), rows.join());
  await page.locator(".tokens").focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("#hint tr.chosen").textContent(), /^u/);
  await picture(page, `tokens-${page.viewportSize().width > 600 ? "desktop" : "phone"}`);
  await set(page, { logprobs: false });
}

async function openSidebar(page) {
  const isPhone = page.viewportSize().width < 600;
  if (isPhone && !(await page.locator("#app.shows-sidebar").count())) await page.click("#menu");
  await page.waitForSelector("#sidebar:visible");
}

async function keepsConversations(page) {
  await page.reload();
  await openSidebar(page);
  const list = page.locator("#conversations li");
  const n = await list.count();
  assert.ok(n >= 4, "conversations outlive the page");
  await page.fill("#search", "another question");
  assert.strictEqual(await list.count(), 1);
  await page.fill("#search", "");
  await list.first().hover();
  await list.first().getByLabel(/^Rename/).click();
  await list.first().locator("input").fill("<b>My title</b>");
  await page.keyboard.press("Enter");
  assert.strictEqual(await list.first().locator(".open").textContent(), "<b>My title</b>");
  const saving = page.waitForEvent("download");
  await page.click("#export");
  const file = await (await saving).path();
  await list.first().hover();
  await list.first().getByLabel(/^Delete/).click();
  await list.first().getByRole("button", { name: "Delete" }).click();
  await page.waitForFunction((most) => document.querySelectorAll("#conversations li").length < most, n);
  const choosing = page.waitForEvent("filechooser");
  await page.click("#import");
  await (await choosing).setFiles(file);
  await page.waitForFunction((least) => document.querySelectorAll("#conversations li").length === least, 2 * n - 1);
  const wrong = page.waitForEvent("filechooser");
  await page.click("#import");
  await (await wrong).setFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from('{"format": 1}') });
  await page.waitForFunction(() => document.querySelector("#notice-text").textContent.includes("not a file of conversations"));
  await picture(page, `sidebar-${page.viewportSize().width > 600 ? "desktop" : "phone"}`);
  await page.keyboard.press("Escape");
}

async function changesTheme(page) {
  await openSidebar(page);
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const seen = new Set();
  for (let i = 0; i < 3; i += 1) {
    await page.click("#theme");
    seen.add(`${await page.getAttribute("html", "data-theme")} ${await ground()}`);
  }
  await page.keyboard.press("Escape");
  for (const theme of ["dark", "light"]) {
    while ((await page.getAttribute("html", "data-theme")) !== theme) await page.evaluate(() => document.querySelector("#theme").click());
    await picture(page, `${theme}-${kind(page)}`);
  }
  assert.strictEqual(seen.size, 3);
  assert.strictEqual(new Set([...seen].map((each) => each.split(" ").slice(1).join(" "))).size, 2, "light and dark differ");
}

// ---- visits -----------------------------------------------------------------------------------------------------------

async function fits(page) {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide`);
  for (const id of ["#text", "#send", "#model", "#menu", "#show-server", "#show-parameters"]) {
    const box = await page.locator(id).boundingBox();
    const { width, height } = page.viewportSize();
    assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height, `${id} is on screen`);
  }
}

async function visit(context, address, screen, steps) {
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => message.type() === "error" && !/status of 400/.test(message.text()) && complaints.push(message.text()));
  page.on("request", (request) => request.url().startsWith(address) || request.url().startsWith("blob:") || complaints.push(`asks ${request.url()}`));
  await page.setViewportSize(SCREENS[screen]);
  await page.goto(`${address}/`);
  await page.waitForFunction(() => document.querySelector("#model").options.length > 0 && document.querySelector("#state.ready"));
  await fits(page);
  for (const step of steps) {
    await step(page);
    console.log(`${screen}: ${step.name}`);
  }
  assert.deepStrictEqual(complaints.filter((each) => !each.includes("TrustedHTML")), []);
  await page.close();
}

const REAL = [goOn, streams, watches, stops, tellsErrors, startsAnew, fits];
const SCRIPTED = [showsMarkdown, fits, showsMath, boundsMath, begins, attachesFiles, leavesImagesOut, showsAnIdleServer, survivesBrokenMessages, isSafe, fits, folds, callsTools, branches, showsProbabilities, keepsConversations, changesTheme];

async function main() {
  for (const screen of Object.keys(SCREENS)) {
    const profile = fs.mkdtempSync(path.join(os.tmpdir(), "tahr-page-"));
    const context = await chromium.launchPersistentContext(profile, {
      executablePath: browser, args: FLAGS, timeout: 60000, acceptDownloads: true, permissions: ["clipboard-read", "clipboard-write"],
    });
    context.setDefaultTimeout(20000);
    try {
      await visit(context, scripted, screen, SCRIPTED);
      if (real) await visit(context, real, screen, REAL);
    } finally {
      await context.close();
      fs.rmSync(profile, { recursive: true, force: true });
    }
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
