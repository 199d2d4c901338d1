//! Who may be connected by one way in, when more come than it has seats for.
//!
//! Whoever just connects, and keeps silent or asks now and then, is not told from an attacker who does so a thousand times. So the next
//! one to come always has a seat, and has it from the client with most seats: of its connections the one goes that asked last the longest ago.
//! A client is a user at a unix socket, and all strangers of the network together. Who showed the token keeps its seat.

use super::access::HttpPeer;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::task::AbortHandle;

/// The seats of one way in.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    by_number: BTreeMap<u64, Occupant>,
    next: u64,
}

#[derive(Debug)]
struct Occupant {
    peer: HttpPeer,
    /// When it came, or asked last.
    asked: Instant,
    has_shown_token: bool,
    /// Ends the connection; none until it is served.
    task: Option<AbortHandle>,
}

/// A taken seat, free when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
}

impl Seats {
    /// A seat for a newcomer where there are `most`; none where all are of clients with the token.
    pub(super) fn take(self: &Arc<Self>, peer: HttpPeer, most: usize) -> Option<Arc<Seat>> {
        let mut taken = self.lock();
        if taken.by_number.len() >= most {
            let number = taken.least_deserving()?;
            let left = taken.by_number.remove(&number)?;
            left.task.iter().for_each(AbortHandle::abort);
        }
        let number = taken.next;
        taken.next += 1;
        let occupant = Occupant { peer, asked: Instant::now(), has_shown_token: false, task: None };
        taken.by_number.insert(number, occupant);
        Some(Arc::new(Seat { seats: self.clone(), number }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn least_deserving(&self) -> Option<u64> {
        let mut strangers: BTreeMap<HttpPeer, Vec<(Instant, u64)>> = BTreeMap::new();
        for (number, occupant) in self.by_number.iter().filter(|(_, occupant)| !occupant.has_shown_token) {
            strangers.entry(occupant.peer).or_default().push((occupant.asked, *number));
        }
        let most = strangers.into_values().max_by_key(Vec::len)?;
        most.into_iter().min().map(|(_, number)| number)
    }
}

impl Seat {
    /// Has the connection end with `task` when its seat is another's.
    pub(super) fn is_served_by(&self, task: AbortHandle) {
        match self.seats.lock().by_number.get_mut(&self.number) {
            Some(occupant) => occupant.task = Some(task),
            None => task.abort(),
        }
    }

    /// Notes that the client asks something.
    pub(super) fn asks(&self) {
        if let Some(occupant) = self.seats.lock().by_number.get_mut(&self.number) {
            occupant.asked = Instant::now();
        }
    }

    /// Notes that the client has shown the token.
    pub(super) fn keep(&self) {
        if let Some(occupant) = self.seats.lock().by_number.get_mut(&self.number) {
            occupant.has_shown_token = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(seats: &Arc<Seats>, seat: &Seat) -> bool {
        !seats.lock().by_number.contains_key(&seat.number)
    }

    #[test]
    fn who_has_the_most_seats_gives_one_that_asked_the_longest_ago() {
        let seats = Arc::new(Seats::default());
        let take = |uid| seats.take(HttpPeer::Unix { uid }, 4);
        let root = take(0).unwrap();
        let user: Vec<Arc<Seat>> = (0..3).map(|_| take(1_000).unwrap()).collect();
        user[0].asks();
        let next = take(1_000).unwrap();
        let another = take(7).unwrap();
        let is_free: Vec<bool> =
            user.iter().chain([&root, &next, &another]).map(|seat| free(&seats, seat)).collect();
        assert_eq!(is_free, [false, true, true, false, false, false]);
        drop(next);
        assert!(take(1_000).is_some() && seats.lock().by_number.len() <= 4);
    }

    #[test]
    fn who_showed_the_token_keeps_its_seat() {
        let seats = Arc::new(Seats::default());
        let known: Vec<Arc<Seat>> = (0..3).map(|_| seats.take(HttpPeer::Tcp, 4).unwrap()).collect();
        known.iter().for_each(|seat| seat.keep());
        let strangers: Vec<Arc<Seat>> = (0..9).map(|_| seats.take(HttpPeer::Tcp, 4).unwrap()).collect();
        assert!(known.iter().chain(strangers.last()).all(|seat| !free(&seats, seat)));
        strangers.last().unwrap().keep();
        assert!(seats.take(HttpPeer::Tcp, 4).is_none());
    }
}
