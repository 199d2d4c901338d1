// The page in a browser, served by a real agent that watches real containers under load.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import { eventually, launch, missing, open } from "./browser.mjs";

const BINARY = process.env.ELBOWROOM ?? fileURLToPath(new URL("../../target/release/elbowroom", import.meta.url));
const NAMES = ["web", "db"].map((name) => `elbowroom-test-dash-${name}-${process.pid}`);
const reason =
  missing ??
  (process.getuid() !== 0 ? "needs root: cgroups and mounts are made" : undefined) ??
  (existsSync("/dev/fuse") ? undefined : "needs /dev/fuse: 'modprobe fuse', or a container that is given it") ??
  (existsSync(BINARY) ? undefined : `needs ${BINARY}: 'make build', or set ELBOWROOM`);
const options = { skip: reason, timeout: 120_000 };

let browser, scratch, address, agent;
const containers = [];

const elbowroom = (...words) => spawnSync(BINARY, ["--run-dir", `${scratch}/run`, ...words], { encoding: "utf8", timeout: 30_000 });
const api = async (path) => (await fetch(`${address}api/v1/${path}`)).json();

function startAgent() {
  agent = spawn(BINARY, ["--run-dir", `${scratch}/run`, "agent", "--state-dir", `${scratch}/state`, "--config", `${scratch}/agent.toml`], { stdio: ["ignore", "ignore", "pipe"] });
  agent.words = "";
  agent.stderr.on("data", (text) => (agent.words += text));
  return eventually(async () => {
    assert.equal(agent.exitCode, null, agent.words);
    return fetch(`${address}api/v1/status`).then(({ ok }) => ok, () => false);
  }, "the API answers", 30_000);
}

/** Ends a process, or with a negative `whom` its group, and waits until it has cleaned up after itself. */
async function stop(child, whom = child.pid) {
  const ended = () => child.exitCode !== null || child.signalCode !== null;
  if (ended()) return;
  process.kill(whom, "SIGTERM");
  await eventually(ended, `${child.spawnargs.join(" ")} ends`, 30_000);
}

/** A free port, below those that the kernel gives to outgoing connections. */
const freePort = (port = 19200) =>
  new Promise((resolve, reject) => {
    if (port > 19299) return reject(new Error("needs a free port between 19200 and 19299"));
    const server = createServer();
    server.once("error", () => resolve(freePort(port + 1)));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(port)));
  });

before(async () => {
  if (reason) return;
  scratch = mkdtempSync(`${tmpdir()}/elbowroom-dash-`);
  const port = await freePort();
  address = `http://127.0.0.1:${port}/`;
  writeFileSync(`${scratch}/agent.toml`, `[api]\nlisten = "127.0.0.1:${port}"\n[disk]\nmode = "observe"\n[memory]\nmode = "observe"\n`);
  await startAgent();
  const work = ["while :; do :; done", `while :; do dd if=/dev/zero of=${scratch}/file bs=1M count=24 conv=fsync 2>/dev/null; sleep 0.3; done`];
  NAMES.forEach((name, i) =>
    containers.push(spawn(BINARY, ["--run-dir", `${scratch}/run`, "run", "--name", name, "--cpus", "1", "--memory", "256MiB", "--", "sh", "-c", work[i]], { stdio: "ignore", detached: true })),
  );
  browser = await launch();
});

after(async () => {
  if (reason) return;
  await browser?.close();
  for (const child of containers) await stop(child, -child.pid);
  await stop(agent);
  const groups = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"].flatMap((root) => NAMES.map((name) => `${root}/elbowroom/${name}`));
  assert.deepEqual(groups.filter(existsSync), [], "cgroups are left behind");
  assert.ok(!readFileSync("/proc/self/mountinfo", "utf8").includes(scratch), "mounts are left behind");
  rmSync(scratch, { recursive: true });
});

test("real containers under load: what the page says is what the agent says", options, async () => {
  await open(browser, address, async (page) => {
    const row = page.locator(".row").filter({ hasText: NAMES[0] });
    await row.waitFor();
    assert.match(await page.evaluate(() => fetch("./").then(({ headers }) => headers.get("Content-Security-Policy"))), /default-src 'none'/);
    // It burns all it may: near one CPU, on a machine that has one for it.
    await eventually(async () => parseFloat(await row.locator("[data-cell=cpu] > .number").textContent()) > 0.1, "the load in the table", 20_000);
    await page.locator(".row").filter({ hasText: NAMES[1] }).waitFor();
    await page.locator("section[aria-label=CPU] .big-value").filter({ hasText: /\d/ }).waitFor();

    await row.click();
    await page.locator("h1").filter({ hasText: NAMES[0] }).waitFor();
    const { explain, container } = await api(`containers/${NAMES[0]}/explain`);
    assert.ok(explain.rule.length > 20);
    await eventually(async () => /memory now/.test(await page.locator(".rule").textContent()), "why it sees what it sees");
    await page.locator("figure").filter({ hasText: "Memory" }).locator("b").filter({ hasText: "256 MiB" }).first().waitFor();
    assert.equal(container.view.memory_hard, 256 * 2 ** 20);
    await page.locator(".changes li").filter({ hasText: "->" }).first().waitFor();
    await page.locator(".mark").first().waitFor({ state: "attached" });
    for (const hash of ["#/memory", "#/disks"]) {
      await page.evaluate((to) => (location.hash = to), hash);
      await page.getByRole("link", { name: NAMES[1] }).waitFor();
    }
    for (const title of ["Findings", "Profiles"]) {
      await page.evaluate((to) => (location.hash = to), `#/${title.toLowerCase()}`);
      await page.getByRole("heading", { name: title }).waitFor();
    }
  });
});

test("`elbowroom dashboard`: its link opens the page once, the next one follows, and Ctrl-C leaves nothing", options, async () => {
  const forward = spawn(BINARY, ["--run-dir", `${scratch}/run`, "dashboard"], { stdio: ["ignore", "pipe", "pipe"] });
  let [links, words] = ["", ""];
  forward.stdout.on("data", (text) => (links += text));
  forward.stderr.on("data", (text) => (words += text));
  try {
    const [link] = await eventually(() => links.match(/^http:\/\/127\.0\.0\.1:\d+\/#code=[0-9a-f]{32}$/m), "the link");
    await eventually(() => words.match(new RegExp(`ssh -L ${new URL(link).port}:127.0.0.1:`)), "the line for ssh");
    const { origin } = new URL(link);
    const status = await eventually(() => readFileSync(`/proc/${forward.pid}/status`, "utf8").match(/^CapEff:\s*0+$[^]*^Seccomp:\s*2$/m), "it has given up its rights");
    assert.match(status.input, /^NoNewPrivs:\s*1$/m);
    await open(browser, link, async (page) => {
      await page.locator(".row").filter({ hasText: NAMES[0] }).waitFor();
      await page.getByText("live", { exact: true }).waitFor();
    });
    const next = await eventually(() => links.trim().split("\n")[1], "the next link");
    assert.notEqual(next, link);
    for (const [path, options, status] of [["/api/v1/status", {}, 401], ["/session", { method: "POST", headers: { Authorization: `Bearer ${link.split("=")[1]}` } }, 401], ["/", {}, 200]]) {
      assert.equal((await fetch(origin + path, options)).status, status, path);
    }
    process.kill(forward.pid, "SIGINT");
    await eventually(() => forward.exitCode !== null || forward.signalCode !== null, "it ends");
    assert.equal(forward.exitCode, 0, words);
    await assert.rejects(fetch(origin));
  } finally {
    forward.kill("SIGKILL");
  }
});

test("the agent dies and is started again: the page says so, and goes on with the same containers", options, async () => {
  const refused = [/ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET/];
  await open(browser, address, async (page) => {
    await page.locator(".row").filter({ hasText: NAMES[1] }).waitFor();
    await stop(agent);
    await page.getByRole("alert").filter({ hasText: "does not answer" }).waitFor();
    assert.equal(await page.locator(".row").filter({ hasText: NAMES[1] }).count(), 1);
    await startAgent();
    await page.locator(".banner").waitFor({ state: "hidden", timeout: 30_000 });
    await eventually(async () => (await page.locator(".row").filter({ hasText: NAMES[1] }).count()) === 1, "its containers are back");
    assert.match(elbowroom("list").stdout, new RegExp(NAMES[1]));
  }, { expected: refused });
});
