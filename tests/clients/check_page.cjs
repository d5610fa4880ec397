// The chat page in headless Chromium: a streamed answer, stop, parameters, a wrong key's error, and a phone's screen.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");

const [address, browser, pictures] = process.argv.slice(2);
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const SCREENS = { desktop: { width: 1200, height: 800 }, phone: { width: 375, height: 667 } };
const COUNT = "Count from one to one thousand, one number per line, and do not stop before.";

const lastAnswer = (page) => page.locator(".turn.assistant span").last();
const picture = (page, name) => page.screenshot({ path: path.join(pictures, name + ".png") });

async function ask(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

// What a small model counts may end at any moment; these answers go on until somebody ends them.
async function goOn(page) {
  await page.route("**/v1/chat/completions", (route) => {
    const body = JSON.parse(route.request().postData());
    return route.continue({ postData: JSON.stringify({ ...body, ignore_eos: true }) });
  });
}

async function idle(page) {
  await page.waitForSelector("#send:visible", { timeout: 60000 });
}

async function grows(page) {
  await page.waitForFunction(() => [...document.querySelectorAll(".turn.assistant span")].at(-1).textContent.length > 20);
}

async function streams(page) {
  await page.click("summary");
  await page.fill("#max_tokens", "128");
  await page.fill("#temperature", "0");
  await page.click("summary");
  await ask(page, "What is gravity?");
  await page.waitForFunction(() => document.querySelector(".turn.assistant span")?.textContent.length > 0);
  assert.ok(await page.isVisible("#stop"), "an answer that has begun is still being written");
  const early = await lastAnswer(page).textContent();
  await idle(page);
  const text = await lastAnswer(page).textContent();
  assert.ok(text.startsWith(early) && text.length > early.length, "the answer grew");
  assert.match(text, /ravity/);
  assert.match(await page.textContent("#speed"), /\d+ prompt \+ \d+ reply tokens · [\d.]+ tokens\/s/);
}

async function stops(page) {
  await page.click("summary");
  await page.fill("#max_tokens", "1500");
  await ask(page, COUNT);
  await grows(page);
  await page.click("#stop");
  await idle(page);
  const text = await lastAnswer(page).textContent();
  await page.waitForTimeout(1000);
  assert.strictEqual(await lastAnswer(page).textContent(), text, "nothing comes after stop");
  const health = await (await page.request.get(address + "/health")).json();
  assert.strictEqual(health.admission.active_requests, 0, "the server has let go of it");
}

async function tellsErrors(page) {
  await page.fill("#max_tokens", "100000000");
  await ask(page, "Hello");
  await page.waitForSelector(".turn.error");
  assert.match(await page.textContent(".turn.error span"), /max_tokens/);
  await idle(page);
  assert.strictEqual(await page.inputValue("#text"), "Hello", "what was refused can be sent again");
  assert.notStrictEqual(await lastAnswer(page).textContent(), "", "no empty answer is left behind");
}

async function startsAnew(page) {
  await page.fill("#max_tokens", "1500");
  await ask(page, COUNT);
  await grows(page);
  await page.click("#clear");
  await idle(page);
  assert.strictEqual(await page.locator(".turn").count(), 0);
  await page.fill("#max_tokens", "8");
  await page.click("summary");
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await ask(page, "Hello");
  const { messages } = (await sent).postDataJSON();
  assert.deepStrictEqual(messages, [{ role: "user", content: "Hello" }], "nothing of the old chat is in the new one");
  await page.waitForFunction(() => document.querySelector("#speed").textContent.includes("8 reply tokens"));
  await idle(page);
}

async function fits(page) {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide`);
  for (const id of ["#text", "#send", "#model", "#clear"]) {
    const box = await page.locator(id).boundingBox();
    const { width, height } = page.viewportSize();
    assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height, `${id} is on screen`);
  }
}

async function visit(context, screen) {
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => request.url().startsWith(address) || complaints.push("asks " + request.url()));
  await page.setViewportSize(SCREENS[screen]);
  await page.goto(address + "/");
  await page.waitForFunction(() => document.querySelector("#model").options.length > 0);
  await fits(page);
  await goOn(page);
  await streams(page);
  await picture(page, screen);
  await stops(page);
  await tellsErrors(page);
  await fits(page);
  await picture(page, screen + "-parameters");
  await startsAnew(page);
  assert.deepStrictEqual(complaints, []);
  await page.close();
}

async function main() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "tahr-page-"));
  const context = await chromium.launchPersistentContext(profile, { executablePath: browser, args: FLAGS, timeout: 60000 });
  try {
    for (const screen of Object.keys(SCREENS)) await visit(context, screen);
  } finally {
    await context.close();
    fs.rmSync(profile, { recursive: true, force: true });
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
