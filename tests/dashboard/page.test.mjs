// The page in a browser, against an agent that is simulated.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readdir, readFile } from "node:fs/promises";
import { eventually, launch, missing, open, overflow, rows } from "./browser.mjs";
import { HOSTILE, mock } from "./mock.mjs";

const options = { skip: missing, timeout: 60_000 };
const SOURCES = new URL("../../dashboard/src/", import.meta.url);
const PAGES = ["#/", "#/memory", "#/disks", "#/findings", "#/profiles"];
let browser;

before(async () => {
  if (!missing) browser = await launch();
});
after(() => browser?.close());

/** An agent and a window onto it. */
async function visit(settings, visitor, { hash = "", ...rest } = {}) {
  const agent = await mock(settings);
  try {
    await open(browser, agent.address + hash, (page) => visitor(page, agent), rest);
  } finally {
    await agent.close();
  }
}

const idOf = (page) => page.$eval(".row:not([hidden])", (row) => row.dataset.id);

test("every page has something to say for none, one and five containers, and alerts", options, async () => {
  for (const [containers, state] of [[0, "quiet"], [1, "quiet"], [5, "alerts"]]) {
    await visit({ containers, state }, async (page) => {
      for (const [i, hash] of PAGES.entries()) {
        await page.keyboard.press(String(i + 1));
        await page.waitForFunction((at) => location.hash === at && document.querySelector("[aria-current]"), hash);
        await page.waitForFunction(() => document.querySelector("main .empty:not([hidden]), main .row, main table, main article"));
        assert.equal(await page.$$eval("main button, main a", (all) => all.filter((element) => !element.textContent && !element.ariaLabel).length), 0, `${hash}: nameless`);
      }
      if (containers === 0) await page.getByText("No saved profiles").waitFor();
    });
  }
});

test("a container may be called anything: its name is text, and what cannot be seen is made visible", options, async () => {
  await visit({ containers: HOSTILE.length, state: "hostile" }, async (page) => {
    await page.waitForSelector(".row");
    const shown = await rows(page);
    assert.ok(shown.includes(HOSTILE[0]) && shown.includes(HOSTILE[1]) && shown.includes("web\\u202egnp.exe") && shown.includes("\\u200b\\u200b") && shown.includes("soft\\u00adhyphen"), shown.join("\n"));
    for (const hash of ["#/memory", "#/disks", "#/findings"]) {
      await page.evaluate((to) => (location.hash = to), hash);
      await page.getByText(HOSTILE[0]).first().waitFor();
    }
    await page.evaluate(() => (location.hash = "#/"));
    for (const name of [HOSTILE[0], HOSTILE[2]]) {
      await page.locator(".row").filter({ hasText: name }).click();
      await page.locator("h1").filter({ hasText: name }).waitFor();
      assert.ok((await page.title()).includes(name));
      await page.keyboard.press("Escape");
      await page.waitForSelector(".row");
    }
    assert.equal(await page.evaluate(() => window.hostile), undefined);
    assert.equal(await page.$$eval("main img, main script", (all) => all.length), 0);
  }, { viewport: { width: 1400, height: 1800 } });
});

test("no source file turns a string into markup", async () => {
  for (const name of await readdir(SOURCES, { recursive: true })) {
    if (!name.endsWith(".ts")) continue;
    const text = await readFile(new URL(name, SOURCES), "utf8");
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function/, name);
  }
});

test("slash filters, arrows walk, Enter opens, Escape goes back, and the address keeps all of it", options, async () => {
  await visit({ containers: 40 }, async (page) => {
    await page.waitForSelector(".row");
    await page.keyboard.press("/");
    await page.keyboard.type("web");
    await eventually(async () => (await rows(page)).every((name) => name.startsWith("web")), "only web");
    assert.deepEqual(await rows(page), ["web-1", "web-2", "web-3", "web-4"]);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.querySelector(".row-name").textContent), "web-2");
    await page.reload();
    await eventually(async () => (await rows(page)).length === 4, "the filter after a reload");
    await page.keyboard.press("/");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.locator("h1").filter({ hasText: "web-1" }).waitFor();
    await page.keyboard.press("]");
    await page.waitForFunction(() => location.hash.includes("range=2h"));
    await page.reload();
    await page.locator("[data-range='2h'][aria-pressed=true]").waitFor();
    await page.keyboard.press("Escape");
    await page.waitForSelector(".row");
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
  });
});

test("the table sorts by any column, largest first, and says so to who cannot see it", options, async () => {
  await visit({ containers: 24 }, async (page) => {
    await page.waitForSelector(".row");
    await page.getByRole("button", { name: "of effective" }).first().click();
    await page.waitForSelector("[data-column=cpu_effective][aria-sort=descending]");
    const values = () => page.$$eval(".row:not([hidden])", (all) => all.sort((a, b) => a.getAttribute("aria-rowindex") - b.getAttribute("aria-rowindex")).map((row) => row.querySelector("[data-cell=cpu_effective] b").textContent).map(parseFloat));
    const down = await values();
    assert.deepEqual(down, [...down].sort((a, b) => b - a));
    await page.getByRole("button", { name: "of effective" }).first().click();
    await page.waitForSelector("[data-column=cpu_effective][aria-sort=ascending]");
    const up = await values();
    assert.deepEqual(up, [...up].sort((a, b) => a - b));
    assert.notDeepEqual(up, down);
  });
});

test("the sick come first, with their sentence and the command that helps, which a button copies", options, async () => {
  await visit({ containers: 14, state: "alerts" }, async (page) => {
    const sick = page.getByRole("region", { name: "Containers that need attention" });
    await sick.getByRole("heading", { name: "8 containers need attention" }).waitFor();
    assert.deepEqual(await sick.locator("li a").allTextContents(), ["web-1", "oomer", "cache-1"]);
    await page.getByRole("heading", { name: "4 alerts" }).waitFor();
    await page.locator(".alerts .pill").getByText("cache-stolen").waitFor();
    assert.equal(await page.locator(".alerts").getByText("OOM-killed").count(), 0, "a verdict is told once");
    assert.deepEqual((await rows(page)).slice(0, 8), ["web-1", "cache-1", "auth-1", "mail-1", "db-1", "batch-1", "search-1", "db-2"]);
    await page.getByRole("button", { name: "Copy: docker update --memory 768m web-1" }).click();
    await sick.getByRole("button").filter({ hasText: "Copied" }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "docker update --memory 768m web-1");
    await page.getByRole("button", { name: "Sick" }).click();
    await eventually(async () => (await rows(page)).length === 7, "only the sick");
    await sick.getByRole("link", { name: "web-1" }).click();
    const verdict = page.getByRole("region", { name: "Verdict" });
    await verdict.getByText("OOM-killed 3 times").waitFor();
    await verdict.getByText("docker update --memory 768m web-1").waitFor();
    await page.locator("article.finding").getByText("out of memory 3 times").waitFor();
    const tops = await page.$$eval(".verdict, article.finding, figure:not([hidden])", (all) => all.map((element) => element.getBoundingClientRect().top));
    assert.deepEqual(tops.slice(0, 3), [...tops].sort((a, b) => a - b).slice(0, 3), "verdict, finding, charts");
    await page.keyboard.press("Escape");
    await page.getByText("2 containers ended within the last hour").click();
    await page.getByRole("link", { name: "backup" }).waitFor();
    await sick.getByRole("link", { name: "oomer" }).click();
    await page.getByText("This container is gone").waitFor();
    await verdict.getByText("docker update --memory 128m oomer").waitFor();
  }, { expected: [/404/], permissions: ["clipboard-read", "clipboard-write"], viewport: { width: 1400, height: 1400 } });
});

test("a container's page has throttling, waiting, refaults and kills, as far as the agent tells of them", options, async () => {
  await visit({ containers: 3, state: "alerts" }, async (page, agent) => {
    await page.waitForSelector(".row");
    const ids = Object.fromEntries(await page.$$eval(".row:not([hidden])", (all) => all.map((row) => [row.querySelector(".row-name").textContent, row.dataset.id])));
    const figure = (name) => page.getByRole("figure", { name });
    await page.evaluate((id) => (location.hash = `#/container/${id}`), ids["db-1"]);
    await figure("CPU").getByText(/throttled \d\.\d\d/).waitFor();
    await figure("Waiting (PSI)").getByText(/for memory \d/).waitFor();
    await figure("Refaults").getByText(/MiB\/s/).first().waitFor();
    await page.evaluate((id) => (location.hash = `#/container/${id}`), ids["web-1"]);
    await figure("Memory").locator(".mark[data-kill]").first().waitFor();
    await page.locator(".changes li").filter({ hasText: "1 process killed" }).first().waitFor();
    agent.settings.old = true;
    await page.reload();
    await figure("CPU").getByText(/used \d/).waitFor();
    assert.equal(await figure("Waiting (PSI)").count() + await figure("Refaults").count(), 0);
    await page.getByRole("region", { name: "Verdict" }).locator(".pill[data-tone=good]").filter({ hasText: "ok" }).waitFor();
  }, { expected: [/404/] });
});

test("the network is charted while its page is open, and one on the host's says why it has no chart", options, async () => {
  await visit({ containers: 3 }, async (page, agent) => {
    await page.waitForSelector(".row");
    const ids = Object.fromEntries(await page.$$eval(".row:not([hidden])", (all) => all.map((row) => [row.querySelector(".row-name").textContent, row.dataset.id])));
    const chart = page.getByRole("figure", { name: "Network" });
    await page.evaluate((id) => (location.hash = `#/container/${id}`), ids["web-1"]);
    await chart.getByText(/received \d.*\/s/).waitFor();
    await chart.getByText(/sent \d.*\/s/).waitFor();
    await page.evaluate((id) => (location.hash = `#/container/${id}`), ids["cache-1"]);
    await page.getByText("it shares the host's").waitFor();
    assert.equal(await chart.count(), 0);
    agent.settings.old = true;
    await page.evaluate((id) => (location.hash = `#/container/${id}`), ids["db-1"]);
    await page.getByRole("figure", { name: "Disk" }).waitFor();
    assert.equal(await chart.count(), 0, "an agent that does not read it");
  }, { expected: [/404/] });
});

test("an alert names its container once", options, async () => {
  await visit({ containers: 14, state: "alerts" }, async (page) => {
    const told = page.locator(".alerts li");
    await told.getByText("gets 8% of nvme0n1").waitFor();
    for (const text of await told.locator("> span:nth-child(2)").allTextContents()) {
      const about = text.split(/[ :]/)[0];
      assert.ok(!text.slice(about.length).startsWith(`: ${about}`) && !text.includes(`on nvme0n1: ${about}`), text);
    }
    await told.getByRole("link", { name: "db-1" }).first().waitFor();
  });
});

test("CPUs are CPUs with two decimals, in every place", options, async () => {
  await visit({ containers: 14 }, async (page) => {
    await page.waitForSelector(".row");
    for (const cell of ["cpu] > .number", "cpu_effective] b"]) {
      const shown = await page.$$eval(`.row:not([hidden]) [data-cell=${cell}`, (all) => all.map((element) => element.textContent));
      assert.ok(shown.length > 5 && shown.every((text) => /^\d+\.\d\d$/.test(text)), shown.join());
    }
    assert.match(await page.locator("section[aria-label=CPU] .big-value").textContent(), /^\d+\.\d\d$/);
    await page.locator(".row").first().click();
    await page.getByText(/^\d+\.\d\d CPUs at most$/).waitFor();
    assert.doesNotMatch(await page.locator("main").textContent(), /\d+m\b|millicore/);
  });
});

test("a governor that only observes shows nothing in red", options, async () => {
  await visit({ containers: 9, state: "alerts", mode: "observe" }, async (page) => {
    await page.waitForSelector(".row");
    for (const hash of ["#/memory", "#/disks"]) {
      await page.evaluate((to) => (location.hash = to), hash);
      await page.waitForSelector("main table");
      assert.equal(await page.locator("main [data-tone=bad], main [data-kind=borrowed]").count(), 0, hash);
      assert.doesNotMatch(await page.locator("main").textContent(), /\bowed\b/);
    }
  });
});

test("a container that needs more memory is not said to lend some", options, async () => {
  await visit({ containers: 9, state: "alerts" }, async (page) => {
    await page.waitForSelector(".row");
    await page.evaluate(() => (location.hash = "#/memory"));
    // It waits for memory, and the governor has not taken any of it.
    const row = page.locator("main table tr").filter({ hasText: "cache-1" });
    await row.getByText("needs more").waitFor();
    assert.doesNotMatch(await row.textContent(), /can lend/);
  });
});

test("a few numbers are no line: a sparkline begins when it has a shape", options, async () => {
  // Numbers come from the moment on that the page is opened, which on a busy machine takes its time.
  const began = Date.now();
  await visit({ containers: 2, young: true }, async (page) => {
    await page.waitForSelector(".row");
    const inked = () => page.$$eval(".row:not([hidden]) canvas", (all) => all.filter((canvas) => canvas.width > 0 && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)).length);
    await eventually(async () => (await inked()) > 0, "a line", 25_000);
    assert.ok(Date.now() - began > 6_000, `a line after ${Date.now() - began} ms`);
  }, { expected: [/willReadFrequently/] });
});

test("the link of `elbowroom dashboard` opens once, and its code does not stay in the address", options, async () => {
  await visit({ containers: 2, token: "abcdef", code: "c0de" }, async (page, agent) => {
    await page.waitForSelector(".row");
    assert.equal(new URL(page.url()).hash, "#/");
    await page.reload();
    await page.waitForSelector(".row");
    await open(browser, `${agent.address}#code=c0de`, async (other) => {
      await other.getByText("open the newest link").waitFor();
      assert.equal(await other.locator(".row").count(), 0);
      agent.settings.code = "fee1";
      await other.evaluate(() => (location.hash = "#code=fee1"));
      await other.waitForSelector(".row");
      await other.locator(".banner").waitFor({ state: "hidden" });
    }, { expected: [/401/] });
  }, { hash: "#code=c0de" });
});

test("each change is on the chart with its reason, for the pointer and for the keyboard", options, async () => {
  await visit({ containers: 3 }, async (page) => {
    await page.waitForSelector(".row");
    await page.evaluate((id) => (location.hash = `#/container/${id}`), await idOf(page));
    const chart = page.locator("figure").filter({ hasText: "CPU" }).first();
    await chart.locator(".mark").nth(1).waitFor();
    await chart.locator(".mark").first().hover();
    await chart.getByRole("tooltip").filter({ hasText: "max-min fairness" }).waitFor();
    await page.mouse.move(0, 0);
    await chart.getByRole("tooltip").waitFor({ state: "hidden" });
    await chart.locator(".mark[tabindex='0']").focus();
    const last = await chart.getByRole("tooltip").textContent();
    await page.keyboard.press("ArrowLeft");
    await eventually(async () => (await chart.getByRole("tooltip").textContent()) !== last, "the change before");
    // A second later everything was drawn again, and the focus is where it was.
    await page.waitForTimeout(1_200);
    assert.equal(await page.evaluate(() => document.activeElement.className), "mark");
    const listed = page.locator(".changes li").first();
    assert.match(await listed.textContent(), /\d\d:\d\d:\d\d.*->/);
    assert.match(await listed.locator("time").getAttribute("title"), /UTC$/);
  });
});

test("when the agent goes away the page says so and keeps what it knew; when it returns, it goes on", options, async () => {
  const refused = [/ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET/];
  await visit({ containers: 5 }, async (page, agent) => {
    await page.waitForSelector(".row");
    await agent.leave();
    await page.getByRole("alert").filter({ hasText: "does not answer" }).waitFor();
    assert.equal((await rows(page)).length, 5);
    agent.settings.containers = 7;
    await agent.comeBack();
    await page.getByRole("button", { name: "Try now" }).click();
    await page.locator(".banner").waitFor({ state: "hidden" });
    await eventually(async () => (await rows(page)).length === 7, "the two that are new");
  }, { expected: refused });
});

test("a container that is gone is said to be gone", options, async () => {
  await visit({ containers: 2 }, (page) => page.getByText("This container is gone").waitFor(), { hash: "#/container/0123456789abcdef", expected: [/404/] });
});

test("an agent that wants a token is given one, and a wrong one is asked for again", options, async () => {
  await visit({ containers: 2, token: "open sesame" }, async (page) => {
    for (const token of ["wrong", "open sesame"]) {
      await page.getByLabel("Token").fill(token);
      await page.getByRole("button", { name: "Go on" }).click();
    }
    await page.waitForSelector(".row");
    await page.locator(".banner").waitFor({ state: "hidden" });
  }, { expected: [/401/] });
});

test("a phone is wide enough for every page", options, async () => {
  await visit({ containers: 9, state: "hostile" }, async (page) => {
    await page.waitForSelector(".row");
    const pages = [...PAGES, `#/container/${await idOf(page)}`, "#/profiles/faults-20261121T094000.json"];
    for (const hash of pages) {
      await page.evaluate((to) => (location.hash = to), hash);
      await page.waitForFunction(() => document.querySelector("main h1"));
      await page.waitForTimeout(150);
      assert.ok((await overflow(page)) <= 0, `${hash} is wider than the window`);
    }
  }, { viewport: { width: 390, height: 844 } });
});

test("dark or light as the system is, or as it was chosen; and everything can be read", options, async () => {
  for (const colorScheme of ["light", "dark"]) {
    await visit({ containers: 3, state: "alerts" }, async (page) => {
      await page.waitForSelector(".row");
      await page.waitForSelector(".alerts");
      assert.equal((await luminance(page, "--page")) < 0.5, colorScheme === "dark");
      for (const tone of ["text", "quiet", "accent"]) for (const ground of ["page", "card"]) await readable(page, tone, ground);
      for (const tone of ["good", "note", "warn", "bad"]) await readable(page, tone, `${tone}-bg`);
      await page.keyboard.press("t");
      if (colorScheme === "light") await page.keyboard.press("t");
      await page.reload();
      await page.waitForSelector(".row");
      assert.equal((await luminance(page, "--page")) < 0.5, colorScheme === "light", "the choice outlives a reload");
    }, { colorScheme });
  }
});

/** WCAG 2.2: relative luminance. */
const luminance = (page, name) =>
  page.evaluate((property) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${property})`;
    const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
    probe.remove();
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }, name);

/** WCAG 2.2, 1.4.3: text of this size needs 4.5 : 1. */
async function readable(page, text, ground) {
  const [a, b] = [await luminance(page, `--${text}`), await luminance(page, `--${ground}`)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  assert.ok(contrast >= 4.5, `${text} on ${ground}: ${contrast.toFixed(2)}`);
}
