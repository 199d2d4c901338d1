// Takes the pictures in docs/images, from a simulated agent: `npm run pictures`.

import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { launch, missing } from "./browser.mjs";
import { mock } from "./mock.mjs";

const OUT = fileURLToPath(new URL("../../docs/images/", import.meta.url));
const WIDE = { width: 1320, height: 980 };
const PICTURES = [
  { name: "light", containers: 12, state: "alerts", viewport: { ...WIDE, height: 1160 } },
  { name: "dark", containers: 500, state: "alerts", colorScheme: "dark", hash: "#/?sort=cpu" },
  { name: "narrow", containers: 12, viewport: { width: 390, height: 844 }, colorScheme: "dark", state: "alerts" },
  { name: "container", containers: 12, state: "alerts", open: "db-1" },
];

if (missing) throw new Error(missing);
await mkdir(OUT, { recursive: true });
const browser = await launch();
for (const { name, containers, state, hash = "", colorScheme = "light", viewport = WIDE, scroll, open } of PICTURES) {
  const agent = await mock({ containers, state });
  const page = await browser.newPage({ viewport, colorScheme });
  await page.goto(agent.address + hash);
  await page.waitForSelector(".row", { state: "attached" });
  if (open) {
    await page.locator(".row").filter({ hasText: open }).click();
    await page.locator(".mark").nth(1).waitFor();
    await page.locator("figure").filter({ hasText: "Memory" }).locator(".mark").last().focus();
  }
  if (scroll) await page.evaluate((top) => scrollTo(0, top), scroll);
  // Sparklines ask for their past one after another.
  await page.waitForTimeout(4_000);
  await page.screenshot({ path: `${OUT}dashboard-${name}.png` });
  await agent.close();
}
await browser.close();
