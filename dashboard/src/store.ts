// What is known now: the last tick of the stream, two minutes of it for sparklines, and slow answers that are asked for again.

import { Failed, get, listen } from "./api";
import type { Alert, Change, Disks, Ended, History, Live, Memory, NodeLive, Status } from "./types";

/** Seconds that a sparkline shows. */
export const SPARK = 120;

/** The last [`SPARK`] seconds of one number; not-a-number where nothing was heard. */
export class Ring {
  readonly values = new Float32Array(SPARK).fill(NaN);
  private second = 0;

  set(second: number, value: number | null | undefined): void {
    if (second <= this.second - SPARK) return;
    for (let s = Math.max(this.second + 1, second - SPARK + 1); s < second; s++) this.values[s % SPARK] = NaN;
    this.second = Math.max(this.second, second);
    this.values[second % SPARK] = value ?? NaN;
  }

  /** From the oldest to the newest. */
  each(now: number, visit: (index: number, value: number) => void): void {
    for (let i = 0; i < SPARK; i++) {
      const second = now - SPARK + 1 + i;
      if (second <= this.second) visit(i, this.values[second % SPARK] as number);
    }
  }
}

/** One container, with its last two minutes. */
export class Row {
  readonly cpu = new Ring();
  readonly memory = new Ring();
  readonly disk = new Ring();
  /** Whether the time before this page was opened was asked for. */
  seeded = false;

  constructor(public live: Live) {}

  take(live: Live, second: number): void {
    this.live = live;
    this.cpu.set(second, live.cpu_used);
    this.memory.set(second, live.memory_used);
    this.disk.set(second, io(live));
  }
}

/** Read and write together. */
export function io(live: { disk_read?: number | null; disk_write?: number | null }): number | null {
  return live.disk_read == null && live.disk_write == null ? null : (live.disk_read ?? 0) + (live.disk_write ?? 0);
}

/** Why nothing is heard, and when it is tried again. */
export interface Away {
  since: number;
  status: number;
  message: string;
  againAt: number;
}

type Topic = "tick" | "slow" | "change" | "away";

class Store {
  at = 0;
  node: NodeLive = {};
  readonly rows = new Map<string, Row>();
  /** Those that ended within the last hour and did not begin again, the last one first. */
  ended: Ended[] = [];
  status: Status | null = null;
  disks: Disks | null = null;
  memory: Memory | null = null;
  alerts: Alert[] = [];
  away: Away | null = null;
  /** Ids of containers that an alert is about. */
  alerted = new Set<string>();

  private readonly listeners = new Map<Topic, Set<(change?: Change) => void>>();
  private retryStream = () => {};
  private seeds: Promise<unknown> = Promise.resolve();

  on(topic: Topic, listener: (change?: Change) => void): () => void {
    let set = this.listeners.get(topic);
    if (!set) this.listeners.set(topic, (set = new Set()));
    set.add(listener);
    return () => set.delete(listener);
  }

  private tell(topic: Topic, change?: Change): void {
    for (const listener of [...(this.listeners.get(topic) ?? [])]) listener(change);
  }

  /** The second that is shown at the right end. */
  get second(): number {
    return Math.floor(this.at / 1000);
  }

  start(): void {
    const stream = listen({
      tick: ({ at, node, containers, ended }) => {
        this.at = at;
        this.node = node ?? {};
        const seen = new Set<string>();
        for (const live of containers) {
          seen.add(live.id);
          let row = this.rows.get(live.id);
          if (!row) this.rows.set(live.id, (row = new Row(live)));
          row.take(live, this.second);
        }
        for (const id of this.rows.keys()) if (!seen.has(id)) this.rows.delete(id);
        this.ended = (ended ?? []).filter(({ id }) => !seen.has(id));
        this.tell("tick");
      },
      change: (change) => this.tell("change", change),
      alert: () => void this.slow(),
      here: () => {
        this.away = null;
        this.tell("away");
        void this.slow();
      },
      away: (failure, wait) => {
        this.away = { since: this.away?.since ?? Date.now(), status: failure.status, message: failure.message, againAt: Date.now() + wait };
        this.tell("away");
      },
    });
    this.retryStream = () => stream.retry();
    setInterval(() => document.hidden || this.away || void this.slow(), 5_000);
    document.addEventListener("visibilitychange", () => document.hidden || void this.slow());
  }

  retry(): void {
    this.retryStream();
  }

  /** Asks for what changes slowly. What fails stays as it was: the stream says whether the agent is there. */
  async slow(): Promise<void> {
    const [status, disks, memory, alerts] = await Promise.all([
      attempt<Status>("status"),
      attempt<Disks>("disks"),
      attempt<Memory>("memory"),
      attempt<Alert[]>("alerts"),
    ]);
    this.status = status ?? this.status;
    this.disks = disks ?? this.disks;
    this.memory = memory ?? this.memory;
    // Verdicts are shown as what they are: with the containers.
    this.alerts = alerts?.filter(({ kind }) => kind !== "VERDICT") ?? this.alerts;
    this.alerted = new Set(this.alerts.flatMap((alert) => (alert.container ? [alert.container.id] : [])));
    this.tell("slow");
  }

  /** Asks for the two minutes before this page was opened, for a row that is looked at; one after another. */
  seed(row: Row, then: () => void): void {
    row.seeded = true;
    this.seeds = this.seeds.then(() => (this.rows.get(row.live.id) === row && !this.away ? this.ask(row).then(then) : undefined));
  }

  private async ask(row: Row): Promise<void> {
    const before = await attempt<History>(historyPath(row.live.id, this.at - SPARK * 1000, this.at, SPARK));
    before?.time.forEach((ms, i) => {
      const second = Math.floor(ms / 1000);
      for (const [ring, value] of [
        [row.cpu, before.series.cpu_used?.[i]],
        [row.memory, before.series.memory_used?.[i]],
        [row.disk, io({ disk_read: before.series.disk_read?.[i] ?? null, disk_write: before.series.disk_write?.[i] ?? null })],
      ] as const) {
        if (value != null && Number.isNaN(ring.values[second % SPARK])) ring.set(second, value);
      }
    });
  }
}

/** An answer, or null: for what may be missing without harm. */
export async function attempt<T>(path: string): Promise<T | null> {
  try {
    return await get<T>(path);
  } catch (error) {
    if (error instanceof Failed) return null;
    throw error;
  }
}

export function historyPath(container: string | null, from: number, to: number, points: number): string {
  const query = new URLSearchParams({ from: String(Math.floor(from)), to: String(Math.ceil(to)), points: String(points) });
  if (container !== null) query.set("container", container);
  return `history?${query}`;
}

export const store = new Store();
