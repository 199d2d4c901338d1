//! Every number that the memory governor was given rather than measures.

use elbowroom_types::unit::Micros;

/// The numbers, and where they are from. Parts are of one; amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryTuning {
    /// A difference of less than this part is none: of usage, of a protection that is in force, of what is due.
    pub(super) noise: f64,
    /// Less is not worth a system call, and no sign of anything.
    pub(super) min_amount: f64,
    /// The least that is recalled in a period, or that a red container is helped by, so that the rest does not take for ever.
    pub(super) min_step: f64,
    /// Nothing changes for this long: an order without an answer is lost, a machine without need is idle, a longer period is a
    /// pause.
    pub(super) patience: Micros,
    /// A shorter period says nothing about a rate.
    pub(super) min_period: Micros,
    /// Served this much less than what is due is red: no user notices less.
    pub(super) missed: f64,
    /// A latency below this part of its objective has room.
    pub(super) relaxed_latency: f64,
    /// Waiting for memory for this part of the time hurts. To a container that cares for throughput it costs as much of that.
    pub(super) harmful_stall: f64,
    /// Waiting for less than this part of the time is not noticed,
    pub(super) tolerated_stall: f64,
    /// nor, by a container that suffers from single slow requests, less than this.
    pub(super) unnoticed_stall: f64,
    /// Programs are asked for memory when they waited for this part of a period (sd-event(3), `MEMORY_PRESSURE_DEFAULT_THRESHOLD_USEC`:
    /// 200 ms of 2 s). A container that reads this part of its memory back within ten periods could use more.
    pub(super) pressing: f64,
    /// A container in which nothing runs or waits for this part of the time has done all that was asked of it.
    pub(super) idle: f64,
    /// Periods that a container is green before that counts.
    pub(super) green_dwell: u8,
    /// The part of a machine that is promised to no container: the kernel needs some to work with.
    pub(super) margin: f64,
    /// The first step of a loan, what each that did no harm makes of the next, and the largest; parts of usage.
    pub(super) first_step: f64,
    pub(super) step_growth: f64,
    pub(super) max_step: f64,
    /// A loan has failed when more than this part of it came back within two periods.
    pub(super) max_refault: f64,
    /// Nothing is lent for this long after a loan that hurt; twice as long with each, up to the longest.
    pub(super) first_hold: Micros,
    pub(super) max_hold: Micros,
    /// The part of an excess that is recalled in a period.
    pub(super) recall_gain: f64,
    /// The part of an entitlement that the kernel keeps: others, also outside containers, grow from the rest.
    pub(super) protected: f64,
    /// Of a reservation it keeps this part: not the last page, for where all is protected, reclaim protects no cgroup and takes
    /// many pages at once (mm/vmscan.c, `memcg_low_reclaim`).
    pub(super) protected_reservation: f64,
    /// What the kernel refused is tried again after this.
    pub(super) refused_retry: Micros,
    /// What another program wrote is left alone for this long.
    pub(super) foreign_retry: Micros,
}

pub(super) const TUNING: MemoryTuning = MemoryTuning {
    noise: 0.02,
    min_amount: (1 << 20) as f64,
    min_step: (8 << 20) as f64,
    patience: Micros::secs(10),
    min_period: Micros::millis(200),
    missed: 0.03,
    relaxed_latency: 0.7,
    harmful_stall: 0.05,
    tolerated_stall: 0.02,
    unnoticed_stall: 0.001,
    pressing: 0.1,
    idle: 0.1,
    green_dwell: 3,
    margin: 0.03,
    first_step: 0.02,
    step_growth: 1.5,
    max_step: 0.12,
    max_refault: 0.25,
    first_hold: Micros::secs(10),
    max_hold: Micros::secs(300),
    recall_gain: 0.25,
    protected: 0.95,
    protected_reservation: 0.995,
    refused_retry: Micros::secs(30),
    foreign_retry: Micros::secs(600),
};

/// Every number of saving that is given rather than measured; the budget is `memory.saving_pressure`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavingTuning {
    /// A container has run for this long before anything is taken: what it reads while it starts says nothing about what it needs.
    pub(super) settle: Micros,
    /// Time between two steps of a container. PSI totals are brought up to date every two seconds (kernel/sched/psi.c, `PSI_FREQ`).
    pub(super) interval: Micros,
    /// The largest step, as a part of usage: a quarter of it in a minute.
    pub(super) max_probe: f64,
    /// The largest and the smallest step in bytes. The kernel tries sixteen times before it says `EAGAIN` (mm/vmscan.c,
    /// `user_proactive_reclaim`): a large step that it cannot take costs CPU time.
    pub(super) max_step: f64,
    pub(super) min_step: f64,
    /// The least that is left in any container, in bytes.
    pub(super) keep: f64,
    /// What may come back in a second, as a part of usage, before that is harm.
    pub(super) harmless_refault: f64,
    /// Nothing is taken for this long after harm, or where the kernel found little; doubled each time, up to the longest.
    pub(super) first_pause: Micros,
    pub(super) max_pause: Micros,
    /// Anonymous memory goes to swap only while this part of swap is free: the rest is for when memory is short.
    pub(super) swap_reserve: f64,
    /// Containers that are taken from in one period: orders are carried out one after another.
    pub(super) orders: usize,
}

pub(super) const SAVING: SavingTuning = SavingTuning {
    settle: Micros::secs(60),
    interval: Micros::secs(3),
    max_probe: 0.015,
    max_step: (64 << 20) as f64,
    min_step: (256 << 10) as f64,
    keep: (8 << 20) as f64,
    harmless_refault: 0.0005,
    first_pause: Micros::secs(15),
    max_pause: Micros::secs(600),
    swap_reserve: 0.2,
    orders: 8,
};
