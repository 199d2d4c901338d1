// What the agent's API says, as far as this page shows it. The agent's own types are in crates/elbowroom-client/src/api.rs and
// crates/elbowroom-types; `null` is "not known", which is not zero.

/** A limit of the kernel: a number, or none. */
export type Limit = number | "max";

/** How a container is, and what helps: the same sentence as in `elbowroom list`, `explain` and `alerts`. */
export interface Verdict {
  status: string;
  reason: string;
  command: string | null;
}

/** A container once a second: CPUs, bytes, bytes per second. */
export interface Live {
  id: string;
  name: string | null;
  engine?: string | null;
  attached?: boolean | null;
  cpu_effective: number | null;
  cpu_upper: number | null;
  cpu_used: number | null;
  memory_effective: number | null;
  memory_hard: number | null;
  memory_used: number | null;
  disk_read: number | null;
  disk_write: number | null;
  memory_lent?: number | null;
  cpu_throttled?: number | null;
  cpu_pressure?: number | null;
  memory_pressure?: number | null;
  io_pressure?: number | null;
  memory_refault?: number | null;
  oom_kills?: number | null;
  /** Absent where nothing is wrong. */
  verdict?: Verdict | null;
}

/** The machine once a second. */
export interface NodeLive {
  cpus?: number | null;
  cpu_used?: number | null;
  memory_total?: number | null;
  memory_used?: number | null;
  memory_free?: number | null;
  disk_read?: number | null;
  disk_write?: number | null;
  containers?: number | null;
  attached?: number | null;
  alerts?: number | null;
}

/** A container that ended within the last hour. */
export interface Ended {
  id: string;
  name: string | null;
  ended_unix_ms: number | null;
  verdict?: Verdict | null;
}

export interface Tick {
  at: number;
  node: NodeLive;
  containers: Live[];
  ended?: Ended[];
}

/** Something that was decided about a container. */
export interface Change {
  at: number;
  container?: string | null;
  kind?: string | null;
  what: string;
  because: string;
}

export interface History {
  container: string | null;
  step_ms: number;
  time: number[];
  series: Record<string, (number | null)[]>;
  changes: Change[];
}

export interface Named {
  id: string;
  name: string | null;
  path: string;
}

export interface Alert {
  kind: string;
  text: string;
  since_unix_ms?: number | null;
  disk_name?: string | null;
  container?: Named | null;
  severity?: string | null;
  topic?: string | null;
}

export interface IoMax {
  rbps: Limit;
  wbps: Limit;
  riops: Limit;
  wiops: Limit;
}

export interface Disk {
  name: string;
  number: string;
  capacity: IoMax;
  rbps: number;
  wbps: number;
  riops: number;
  wiops: number;
  used: number | null;
  queue: number;
  wait: number;
  base_wait: number;
  promised: number;
  state: string;
  exempt_reason: string | null;
}

export interface Disks {
  mode: string;
  not_enforced: string | null;
  policy: string | { policy?: string };
  disks: Disk[];
  alerts: Alert[];
}

/** A container at one disk; shares are parts of the disk. */
export interface DiskStatus {
  disk: string;
  name: string;
  rbps: number;
  wbps: number;
  riops: number;
  wiops: number;
  used: number | null;
  lifeline: number | null;
  cap: number | null;
  max: IoMax;
  enforced: boolean;
  held_by: string;
}

export interface MemoryStatus {
  colour: string;
  source: string;
  sigma: number | null;
  stall: number | null;
  state: string;
  usage: number;
  reclaimable: number;
  reservation: number;
  minimum: number;
  entitlement: number;
  lent: number;
  protected: number;
  enforced: boolean;
  view_ceiling: Limit;
  exempt_reason: string | null;
}

export interface Pool {
  path: string;
  size: number;
  free: number;
  reserved: number;
  short: boolean;
  containers: number;
  needing_more: number;
}

export interface Memory {
  mode: string;
  not_enforced: string | null;
  pools: Pool[];
  containers: { container: Named; status: MemoryStatus; verdict?: Verdict | null }[];
  alerts: Alert[];
}

export interface Receiver {
  receiver: string;
  delivered: number;
  failed: number;
  dropped: number;
}

export interface Status {
  version: string;
  source: string;
  containers: number;
  attached: number;
  ticks: number;
  ticks_missed: number;
  cpu_usec: number;
  receivers: Receiver[];
}

export interface Container {
  id: string;
  name: string | null;
  engine: string;
  pod: { uid: string; name: string | null; namespace: string | null } | null;
  path: string;
  attached: boolean;
  attach_note: string | null;
  view: { millicpu: number; cpus_lower: number; cpus_upper: number; memory: number; memory_soft: number; memory_hard: number };
  disk: DiskStatus[];
  memory: MemoryStatus | null;
  verdict?: Verdict | null;
  probe: { source: string; freshness: unknown; problem: string | null } | null;
}

/** What the interfaces of its network namespace have carried; `counters` is `null` where that is the host's. */
export interface NetworkReport {
  time_unix_ms: number;
  counters: { received_bytes: number; sent_bytes: number } | null;
}

export interface Explanation {
  container: Container;
  explain: { rule: string };
}

export interface Finding {
  check: string;
  severity: "info" | "warning" | "critical";
  container: string | null;
  cgroup: string | null;
  sentence: string;
  evidence: { file: string; value: string }[];
  fix: { commands: string[] } | null;
  advice: string | null;
  reference: string;
}

export interface Profile {
  name: string;
  kind: string;
  time_unix_ms: number;
  bytes: number;
}
