// A real browser, and what every test of a page asks of it.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Why there can be no browser here, or nothing. */
export const missing = existsSync(CHROMIUM) ? undefined : `needs chromium: there is no ${CHROMIUM}; tools/setup dashboard-test brings it, or set CHROMIUM`;

/** Root has no sandbox in Chromium; the pages are our own. */
export function launch() {
  return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info", "--js-flags=--expose-gc"] });
}

/**
 * Opens `address` in a window of its own, and closes it after `test`. What the page writes to the console, what it throws, and what
 * the content security policy stops, fails the test.
 */
export async function open(browser, address, test, { expected = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, timezoneId: "Europe/Paris", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(String(error.stack)));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
  page.on("request", (request) => new URL(request.url()).origin === new URL(address).origin || wrong.push(`asked another origin: ${request.url()}`));
  try {
    await page.goto(address);
    await test(page);
    assert.deepEqual(wrong.filter((text) => !expected.some((pattern) => pattern.test(text))), []);
  } finally {
    await context.close();
  }
}

/** Waits until `question` has a true answer; it is the answer. */
export async function eventually(question, what, within = 10_000) {
  const until = Date.now() + within;
  for (;;) {
    const answer = await question();
    if (answer) return answer;
    if (Date.now() > until) assert.fail(`${what}: not within ${within} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** The pixels by which a page is wider than its window. */
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

/** The names of the rows that exist, from the top. */
export const rows = (page) =>
  page.$$eval(".row:not([hidden])", (all) => all.sort((a, b) => a.getAttribute("aria-rowindex") - b.getAttribute("aria-rowindex")).map((row) => row.querySelector(".row-name").textContent));
