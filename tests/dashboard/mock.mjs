// An agent that is not there: the API's answers for any number of simulated containers, and the dashboard's files. The shapes
// are those of a real agent's answers, and the live test holds the same page against a real agent.
//
//   node mock.mjs [--port N] [--containers N] [--state quiet|alerts|hostile] [--mode enforce|observe] [--token T]

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const FILES = fileURLToPath(new URL("../../target/dashboard/", import.meta.url));
const ASSETS = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/assets/app.js": ["app.js", "text/javascript; charset=utf-8"],
  "/assets/app.css": ["app.css", "text/css; charset=utf-8"],
  "/assets/icon.svg": ["icon.svg", "image/svg+xml"],
};
// As in crates/elbowroom-agent/src/dashboard.rs.
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const GiB = 2 ** 30;
const MiB = 2 ** 20;
const CPUS = 16;
const TOTAL = 64 * GiB;
const NAMES = ["web", "db", "cache", "queue", "search", "batch", "mail", "auth", "render", "index", "proxy", "worker"];
const ENGINES = ["docker", "containerd", "podman", "elbowroom"];

/** Names that would run a script, or pass for another, where a page is careless. */
export const HOSTILE = [
  "<img src=x onerror=\"window.hostile=1\">",
  "<script>window.hostile=1</script>",
  "\"><svg onload=window.hostile=1>",
  "javascript:window.hostile=1",
  "&lt;b&gt;not bold&lt;/b&gt;",
  "web\u202Egnp.exe",
  "line\nbreak\ttab\u0007bell",
  "{{constructor.constructor('window.hostile=1')()}}",
  "\u200B\u200B",
  "soft\u00ADhyphen",
  "a".repeat(300),
];

/** The same number for the same question: pictures and tests do not change from run to run. */
function noise(...seeds) {
  let x = 2166136261;
  for (const seed of seeds) x = Math.imul(x ^ seed, 16777619) ^ (x >>> 13);
  x = Math.imul(x ^ (x >>> 16), 2246822507);
  return ((x ^ (x >>> 13)) >>> 0) / 2 ** 32;
}

/** A wave between 0 and 1 that looks like load. */
function load(i, second, speed) {
  const slow = 0.5 + 0.5 * Math.sin(second / (37 * speed) + i * 1.7);
  const quick = 0.5 + 0.5 * Math.sin(second / (7 * speed) + i * 0.9);
  return Math.min(1, 0.55 * slow + 0.25 * quick + 0.2 * noise(i, Math.floor(second)));
}

/** What a container does in a second. Pure: history and stream agree. */
function liveOf(i, second, { state, containers, old }) {
  const crowd = Math.min(1, 12 / containers);
  const name = state === "hostile" && i < HOSTILE.length ? HOSTILE[i] : `${NAMES[i % NAMES.length]}-${Math.floor(i / NAMES.length) + 1}`;
  const upper = [4, 2, 8, 1, 16, 0.5][i % 6];
  const epoch = Math.floor((second + i * 11) / 90);
  const effective = Math.max(Math.min(upper, 0.5), Math.round(upper * (0.4 + 0.6 * noise(i, epoch, 3)) * (upper < 1 ? 2 : 1)) / (upper < 1 ? 2 : 1));
  const hard = Math.max(64 * MiB, Math.round([1, 2, 8, 0.5, 4, 16][(i * 5) % 6] * 1024 * crowd) * MiB);
  const memory = Math.round((hard * (0.6 + 0.4 * noise(i, Math.floor(second / 240), 5))) / MiB) * MiB;
  const idle = i % 5 === 4;
  const busyDisk = i % 7 === 1;
  const live = {
    id: `${(i + 1).toString(16).padStart(4, "0")}${"c0ffee".repeat(10)}`,
    name,
    engine: ENGINES[i % ENGINES.length],
    attached: !(state === "alerts" && i === 3),
    cpu_lower: Math.max(1, Math.floor(upper / 2)),
    cpu_effective: effective,
    cpu_upper: upper,
    cpu_used: Math.round((idle ? 0.004 : effective * load(i, second, 1) * (i % 4 === 1 ? 1 : 0.35) * crowd) * 1000) / 1000,
    memory_soft: hard / 2,
    memory_effective: memory,
    memory_hard: hard,
    memory_used: Math.round(memory * (0.35 + 0.6 * load(i, second, 9))),
    memory_lent: i > 2 && i % 6 === 2 ? Math.round(hard * 0.15) : 0,
    memory_entitlement: hard,
    disk_read: busyDisk ? Math.round(90 * MiB * crowd * load(i + 3, second, 2)) : 0,
    disk_write: idle ? 0 : Math.round((busyDisk ? 40 * MiB * crowd : 300 * 1024) * load(i + 5, second, 1)),
  };
  if (old) return live;
  return {
    ...live,
    cpu_throttled: i % 4 === 1 ? Math.round(400 * load(i + 2, second, 1)) / 1000 : null,
    cpu_pressure: 0.1 * load(i + 6, second, 2),
    memory_pressure: i % 3 === 1 ? 0.2 * load(i + 1, second, 2) : 0.002 * load(i, second, 2),
    io_pressure: busyDisk ? 0.5 * load(i + 4, second, 2) : 0,
    memory_refault: i % 3 === 1 ? Math.round(6 * MiB * load(i + 1, second, 2)) : 0,
    oom_kills: state === "alerts" && i === 0 ? Math.floor(second / 150) % 1000 : 0,
    verdict: verdictOf(i, name, state),
  };
}

/** Containers that ended: one was killed and is not back yet, one went by itself. */
function ended({ state }, second) {
  if (state !== "alerts") return [];
  return [
    { id: `dead${"0".repeat(60)}`, name: "oomer", ended_unix_ms: (second - 20) * 1000, verdict: { status: "killed", reason: "OOM-killed 8 times in 60 s at its limit of 64MiB", command: "docker update --memory 128m oomer" } },
    { id: `done${"0".repeat(60)}`, name: "backup", ended_unix_ms: (second - 900) * 1000, verdict: { status: "ok", reason: "it gets what it asks for", command: null } },
  ];
}

/** What is wrong with a container: in a quiet crowd nothing. */
function verdictOf(i, name, state) {
  if (state === "quiet") return null;
  return [
    { status: "killed", reason: "OOM-killed 3 times in 5 min at its limit of 512MiB", command: `docker update --memory 768m ${name}` },
    { status: "throttled", reason: "its quota of 1 CPU holds its threads back 380 ms of every second", command: `docker update --cpus 2 ${name}` },
    { status: "waiting_memory", reason: "waits for memory 12% of the time at its limit of 1GiB", command: `docker update --memory 1536m ${name}` },
    null,
    { status: "tight", reason: "needs 134MiB of memory with a tenth to spare, and its limit is 128MiB", command: `docker update --memory 192m ${name}` },
    { status: "unfair", reason: "uses 71% of nvme0n1, where its neighbours leave it 22%", command: "elbowroom disks" },
    { status: "waiting_cpu", reason: "waits for a CPU 32% of the time, which its neighbours use", command: null },
    { status: "waiting_disk", reason: "waits for nvme0n1 31% of the time, which its neighbours use", command: "elbowroom disks" },
  ][i] ?? null;
}

function nodeOf(second, all, times = 1) {
  const sum = (key) => times * all.reduce((total, live) => total + (live[key] ?? 0), 0);
  const used = Math.min(TOTAL * 0.93, 3 * GiB + sum("memory_used"));
  return { cpus: CPUS, cpu_used: Math.min(CPUS, 0.3 + sum("cpu_used")), memory_total: TOTAL, memory_used: used, memory_free: TOTAL - used, disk_read: sum("disk_read"), disk_write: sum("disk_write"), containers: all.length, attached: all.length, alerts: 0 };
}

const mib = (n) => `${Math.round(n / MiB)}MiB`;

function changesOf(i, from, to, settings) {
  const out = [];
  let before = liveOf(i, from, settings);
  for (let second = from + 1; second <= to; second++) {
    const now = liveOf(i, second, settings);
    if (now.cpu_effective !== before.cpu_effective) {
      const less = now.cpu_effective < before.cpu_effective;
      out.push({ at: second * 1000, container: now.id, name: now.name, kind: "cpu", what: `cpu ${before.cpu_effective} -> ${now.cpu_effective}`, because: less ? `it used 41% of ${before.cpu_effective} CPUs and is not busy: if it were, max-min fairness would give it only ${now.cpu_effective}` : `it used 97% of ${before.cpu_effective} CPUs and is busy: max-min fairness gives it ${now.cpu_effective}` });
    }
    if (now.memory_effective !== before.memory_effective) {
      out.push({ at: second * 1000, container: now.id, name: now.name, kind: "memory", what: `memory ${mib(before.memory_effective)} -> ${mib(now.memory_effective)}`, because: now.memory_effective < before.memory_effective ? "it lends: its view shows less, so that its programs can give some back" : "it uses 93% of what it has, and of 21GiB free memory growth costs 1GiB, which leaves more than 8GiB" });
    }
    before = now;
  }
  return out;
}

/**
 * `port` 0 takes any that is free. `mode` is that of both governors; `code` is exchanged once for the token; `old` is an agent without
 * verdicts and pressure; `young` knows no past. Gives the address, and handles to disturb it.
 */
export async function mock({ port = 0, containers = 5, state = "quiet", token = "", mode = "", code = "", old = false, young = false } = {}) {
  const settings = { containers, state, token, mode, code, old, young };
  const streams = new Set();
  const lives = (second) => Array.from({ length: settings.containers }, (_, i) => liveOf(i, second, settings));
  const now = () => Math.floor(Date.now() / 1000);

  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://mock");
    const send = (status, type, body) => {
      response.writeHead(status, { "Content-Type": type, "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache" });
      response.end(body);
    };
    const json = (value, status = 200) => send(status, "application/json", JSON.stringify(value));
    if (request.method === "POST" && url.pathname === "/session") {
      if (!settings.code || request.headers.authorization !== `Bearer ${settings.code}`) return json({ error: "this link was used before" }, 401);
      settings.code = "";
      return json({ token: settings.token });
    }
    const asset = ASSETS[url.pathname];
    if (asset) return send(200, asset[1], await readFile(FILES + asset[0]));
    const path = decodeURIComponent(url.pathname).match(/^\/api\/v1\/(.+)$/)?.[1];
    if (!path) return json({ error: "no such page" }, 404);
    if (settings.token && request.headers.authorization !== `Bearer ${settings.token}`) return json({ error: "a token is needed" }, 401);
    const second = now();
    const all = () => lives(second);
    if (path === "stream") {
      response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
      streams.add(response);
      response.on("close", () => streams.delete(response));
      return tick(response, second);
    }
    if (path === "history") return json(history(url.searchParams, settings, second));
    if (path === "status") return json(status(settings));
    if (path === "disks") return json(disks(settings, all()));
    if (path === "memory") return json(memory(settings, all()));
    if (path === "alerts") return json(alerts(settings, all()));
    if (path === "findings") return json(findings(settings));
    if (path === "profiles") return json(settings.containers ? PROFILES.map(({ report, ...row }) => row) : []);
    if (path.startsWith("profiles/")) {
      const found = PROFILES.find(({ name }) => `profiles/${name}` === path);
      return found ? json(found.report) : json({ error: "no such profile" }, 404);
    }
    if (path === "containers") return json(all().map((live, i) => container(live, i)));
    const [, id, what] = path.match(/^containers\/(.+)\/(explain|network)$/) ?? [];
    const index = id === undefined ? -1 : all().findIndex((live) => live.id === id);
    if (index < 0 || (what === "network" && settings.old)) return json({ error: `no container ${id}` }, 404);
    if (what === "network") return json(network(index, Date.now()));
    const live = all()[index];
    return json({ container: container(live, index), explain: { rule: `${live.cpu_effective} ${live.cpu_effective === 1 ? "CPU" : "CPUs"} now, between ${live.cpu_lower} and ${live.cpu_upper}: no quota, ${CPUS} allowed, and weight 1024 of 2048 which is worth ${live.cpu_lower} of ${CPUS} CPUs; ${mib(live.memory_effective)} of memory now, between soft ${mib(live.memory_soft)} and hard ${mib(live.memory_hard)} (/${live.name}).` } });
  });

  const write = (to, event, data) => to.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  function tick(to, second) {
    const all = lives(second);
    write(to, "snapshot", { at: second * 1000, node: nodeOf(second, all), containers: all, ...(settings.old ? {} : { ended: ended(settings, second) }) });
    for (let i = 0; i < Math.min(all.length, 20); i++) for (const change of changesOf(i, second - 1, second, settings)) write(to, "change", change);
  }
  const timer = setInterval(() => {
    const second = now();
    for (const stream of streams) tick(stream, second);
  }, 1000);

  const listen = (at) => new Promise((resolve, reject) => server.once("error", reject).listen(at, "127.0.0.1", () => resolve(server.address().port)));
  const taken = await listen(port);
  const hangUp = () => new Promise((resolve) => {
    server.close(resolve);
    server.closeAllConnections();
  });
  return {
    address: `http://127.0.0.1:${taken}/`,
    settings,
    /** Stops listening. */
    leave: hangUp,
    /** Listens again. */
    comeBack: () => listen(taken),
    close: async () => {
      clearInterval(timer);
      await hangUp();
    },
  };
}

const SERIES = ["cpu_effective", "cpu_lower", "cpu_upper", "cpu_used", "memory_effective", "memory_soft", "memory_hard", "memory_used", "disk_read", "disk_write", "memory_lent", "memory_entitlement", "cpu_throttled", "cpu_pressure", "memory_pressure", "io_pressure", "memory_refault", "oom_kills"];

function history(query, settings, now) {
  const id = query.get("container");
  const to = Math.min(now, Math.ceil(Number(query.get("to")) / 1000) || now);
  const span = Math.max(1, to - Math.floor(Number(query.get("from")) / 1000));
  const step = span <= 600 ? 1 : span <= 7200 ? 10 : 60;
  const index = id === null ? -1 : lookup(id, settings);
  if (settings.young || (id !== null && index < 0)) return { container: id, step_ms: 1000, time: [], series: {}, changes: [] };
  const time = [];
  const series = Object.fromEntries(SERIES.map((key) => [key, []]));
  for (let second = to - span; second <= to; second += step) {
    time.push(second * 1000);
    let values;
    if (id === null) {
      const sample = Array.from({ length: Math.min(settings.containers, 12) }, (_, i) => liveOf(i, second, settings));
      const node = nodeOf(second, sample, settings.containers / Math.max(1, sample.length));
      values = { cpu_used: node.cpu_used, cpu_upper: node.cpus, memory_used: node.memory_used, memory_hard: node.memory_total, disk_read: node.disk_read, disk_write: node.disk_write };
    } else values = liveOf(index, second, settings);
    for (const key of SERIES) series[key].push(values[key] ?? null);
  }
  return { container: id, step_ms: step * 1000, time, series, changes: index < 0 ? [] : changesOf(index, to - Math.min(span, 7200), to, settings) };
}

/** What a container's interfaces have carried by then: in waves, eight times as much in as out. The third one shares the host's network. */
function network(i, at) {
  const wave = (i + 1) * Math.round((8 * Math.sin(at / 9000) + (at % 1e8) / 1000) * 64 * 1024);
  return { time_unix_ms: at, counters: i === 2 ? null : { received_bytes: 8 * wave, sent_bytes: wave } };
}

const lookup = (id, { containers }) => Array.from({ length: containers }, (_, i) => i).find((i) => id === `${(i + 1).toString(16).padStart(4, "0")}${"c0ffee".repeat(10)}`) ?? -1;
const named = ({ id, name }) => ({ id, name, path: `/docker/${id}` });
const NO_LIMIT = { rbps: "max", wbps: "max", riops: "max", wiops: "max" };

function memoryOf(live, i) {
  const lent = live.memory_lent;
  return { colour: ["yellow", "red", "green"][i % 3], source: i % 4 ? "stalls" : "probe", sigma: null, stall: i % 3 === 1 ? 0.12 : 0.0004, state: lent ? "lending" : i % 3 === 2 ? "spare" : "protected", until: null, usage: live.memory_used, reclaimable: Math.round(live.memory_used / 3), reservation: i % 2 ? live.memory_hard / 2 : 0, minimum: live.memory_hard / 4, entitlement: i % 6 === 1 ? Math.round(live.memory_used * 0.8) : live.memory_hard, working_set: 0, lent, protected: live.memory_used, enforced: true, view_ceiling: "max", lease: null, failures: 0, exempt_reason: null, decisions: [] };
}

function diskOf(live, i) {
  const used = (live.disk_read + live.disk_write) / (400 * MiB);
  return { disk: "259:0", name: "nvme0n1", rbps: live.disk_read, wbps: live.disk_write, riops: Math.round(live.disk_read / 65536), wiops: Math.round(live.disk_write / 65536), used, lifeline: i % 7 === 1 ? 0.22 : 0.01, cap: i % 7 === 1 ? 0.34 : null, max: NO_LIMIT, enforced: true, held_by: i % 7 === 1 && used > 0.2 ? ["cap", "others"][i % 2] : "nothing", decisions: [] };
}

function container(live, i) {
  return { id: live.id, name: live.name, engine: live.engine, pod: i % 4 === 1 ? { uid: `u${i}`, name: `${live.name}-pod`, namespace: "shop" } : null, path: `/docker/${live.id}`, attached: live.attached, attach_note: live.attached ? null : "its mount namespace is gone", missing: [], view: { millicpu: live.cpu_effective * 1000, cpus_lower: live.cpu_lower, cpus_upper: Math.ceil(live.cpu_upper), memory: live.memory_effective, memory_soft: live.memory_soft, memory_hard: live.memory_hard }, cpu_used_millicpu: Math.round(live.cpu_used * 1000), disk: live.disk_write ? [diskOf(live, i)] : [], memory: memoryOf(live, i), verdict: live.verdict, probe: null };
}

function status({ containers, state }) {
  return { version: "0.1.0", pids: { supervisor: 1, view_server: 2, policy: 3 }, run_dir: "/run/elbowroom", source: "files", containers, attached: containers - (state === "alerts" ? 1 : 0), ticks: 123456, ticks_missed: state === "alerts" ? 4000 : 3, cpu_usec: 9e6, receivers: state === "alerts" ? [{ receiver: "https://alerts.example.net/…", delivered: 3, failed: 2, dropped: 0 }] : [] };
}

function alerts({ state }, all) {
  if (state !== "alerts" || all.length === 0) return [];
  const about = (i) => named(all[i % all.length]);
  const began = Date.now() - 754_000;
  return [
    { kind: "STARVED", disk: "259:0", group: 7, since: 1, until: null, since_unix_ms: began, disk_name: "nvme0n1", container: about(1), text: `${about(1).name} gets 8% of nvme0n1 and needs 22% (17.3 requests under way): give it a reservation or a weight, or move a container to another disk` },
    { kind: "DEGRADED", disk: "259:0", group: null, since: 1, until: null, since_unix_ms: began - 3e5, disk_name: "nvme0n1", container: null, text: "nvme0n1 does 41% of what it did on most of the last 24 hours: look at its health, its cloud credits, and what else uses it" },
    { kind: "VERDICT", topic: "killed", disk: null, group: 1, since: 1, until: null, since_unix_ms: began, disk_name: null, container: about(0), text: `${about(0).name}: OOM-killed 3 times in 5 min at its limit of 512MiB` },
    { kind: "FINDING", topic: "cache-stolen", disk: null, group: 3, since: 1, until: null, since_unix_ms: began, disk_name: null, container: about(1), text: "Its page cache was taken by its neighbours." },
    { kind: "FOREIGN_WRITER", disk: null, group: 9, since: 1, until: null, disk_name: null, container: about(2), text: `another program set the protection of ${about(2).name} that was the agent's: the agent leaves it alone for ten minutes` },
  ];
}

function disks(settings, all) {
  const slow = settings.state === "alerts";
  const list = all.length === 0 ? [] : [
    { number: "259:0", name: "nvme0n1", capacity: { rbps: 2.1e9, wbps: 1.2e9, riops: 420000, wiops: 180000 }, rbps: 91e6, wbps: 44e6, riops: 1500, wiops: 800, used: slow ? 0.97 : 0.46, queue: slow ? 17.3 : 2.2, wait: slow ? 9400 : 310, base_wait: 280, promised: 0.61, state: slow ? "slow" : "guard", exempt_reason: null },
    { number: "8:0", name: "sda", capacity: NO_LIMIT, rbps: 0, wbps: 12288, riops: 0, wiops: 2, used: null, queue: 0.01, wait: 3426, base_wait: 3398, promised: 0, state: "free", exempt_reason: "it carries swap: a limit here could delay the memory of every container, so the disk is only watched" },
  ];
  return { mode: settings.mode || "enforce", not_enforced: null, policy: "lifeline", disks: list, alerts: alerts(settings, all).filter(({ disk }) => disk) };
}

function memory(settings, all) {
  const used = nodeOf(0, all).memory_used;
  return { mode: settings.mode || "observe", not_enforced: null, pools: all.length ? [{ path: "/", size: TOTAL * 0.95, free: TOTAL * 0.95 - used, reserved: 18 * GiB, short: settings.state === "alerts", containers: all.length, needing_more: Math.ceil(all.length / 3) }] : [], containers: all.map((live, i) => ({ container: named(live), status: memoryOf(live, i), verdict: live.verdict })), alerts: alerts(settings, all).filter(({ disk, kind }) => !disk && kind !== "VERDICT" && kind !== "FINDING") };
}

function findings({ state, containers }) {
  if (containers === 0) return { looked_unix_ms: Date.now() - 40_000, problem: null, findings: [] };
  const hostile = state === "hostile" ? HOSTILE[0] : "web-1";
  return {
    looked_unix_ms: Date.now() - 40_000, problem: null,
    findings: [
      { check: "memory-killed", severity: "critical", container: hostile, cgroup: "/docker/1", sentence: `${hostile} was out of memory 3 times in the last hour, and the kernel killed a process each time.`, evidence: [{ file: "/sys/fs/cgroup/docker/1/memory.events oom_kill", value: "3 in 58 min" }], fix: { commands: ["echo 2147483648 > /sys/fs/cgroup/docker/1/memory.max"], writes: [] }, advice: "Or find what grows: `elbowroom profile pages`.", reference: "Documentation/admin-guide/cgroup-v2.rst, memory.events" },
      { check: "cpu-throttled", severity: "warning", container: "db-1", cgroup: "/docker/2", sentence: "db-1 was throttled in 38% of the periods although the machine had 9 idle CPUs.", evidence: [{ file: "/sys/fs/cgroup/docker/2/cpu.stat nr_throttled", value: "+231 in 1.0 s" }], fix: { commands: ["echo max > /sys/fs/cgroup/docker/2/cpu.max"], writes: [] }, advice: null, reference: "Documentation/scheduler/sched-bwc.rst" },
      { check: "disk-not-rotational", severity: "info", container: null, cgroup: null, sentence: "sda says it has platters and answers in 620us: schedulers and write-back wait for seeks that are none.", evidence: [{ file: "/sys/block/sda/queue/rotational", value: "1" }], fix: { commands: ["echo 0 > /sys/block/sda/queue/rotational"], writes: [] }, advice: null, reference: "Documentation/ABI/stable/sysfs-block, rotational" },
    ],
  };
}

const PROFILES = [
  { name: "faults-20261121T094000.json", kind: "faults", time_unix_ms: 1795254000000, bytes: 18213, report: { kind: "faults", elapsed_seconds: 30.1, tier: "functions", containers: [{ name: "web-1", faults: 18211, major: 12, duplicate: 4211, latency_usec: 0.9 }, { name: "db-1", faults: 903, major: 88, duplicate: 3, latency_usec: 14.2 }] } },
  { name: "pages-20261120T120000.json", kind: "pages", time_unix_ms: 1795176000000, bytes: 904, report: { kind: "pages", total_bytes: 4294967296, containers: [{ name: "web-1", groupable: 8123, exclusive: 90321 }] } },
];

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { port: { type: "string", default: "19200" }, containers: { type: "string", default: "5" }, state: { type: "string", default: "quiet" }, mode: { type: "string", default: "" }, token: { type: "string", default: "" } } });
  const { address } = await mock({ ...values, port: Number(values.port), containers: Number(values.containers) });
  console.log(address);
}
