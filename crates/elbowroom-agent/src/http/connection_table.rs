//! The open connections of one listener, and which is closed when one more comes than it serves.
//!
//! A client that connects and stays silent, or asks now and then, cannot be told from an attacker that does so a thousand times. So the
//! next connection is always served, in the place of one of the client with most connections: of these, the one whose last request is
//! oldest is closed. A client is a user at a unix socket, and all strangers of the network together. A connection that showed the token is
//! not closed.

use super::access::HttpPeer;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::task::AbortHandle;

/// The connections of one listener.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable(Mutex<OpenConnections>);

#[derive(Debug, Default)]
struct OpenConnections {
    by_number: BTreeMap<u64, OpenConnection>,
    next: u64,
}

#[derive(Debug)]
struct OpenConnection {
    peer: HttpPeer,
    /// When it came, or asked last.
    asked: Instant,
    has_shown_token: bool,
    /// Ends the connection; none until it is served.
    task: Option<AbortHandle>,
}

/// A connection's entry, removed when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionEntry {
    table: Arc<ConnectionTable>,
    number: u64,
}

impl ConnectionTable {
    /// An entry for a new connection where there are `most`; none where all others have shown the token.
    pub(super) fn admit(self: &Arc<Self>, peer: HttpPeer, most: usize) -> Option<Arc<ConnectionEntry>> {
        let mut open = self.lock();
        if open.by_number.len() >= most {
            let number = open.next_to_close()?;
            let closed = open.by_number.remove(&number)?;
            closed.task.iter().for_each(AbortHandle::abort);
        }
        let number = open.next;
        open.next += 1;
        let connection = OpenConnection { peer, asked: Instant::now(), has_shown_token: false, task: None };
        open.by_number.insert(number, connection);
        Some(Arc::new(ConnectionEntry { table: self.clone(), number }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpenConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn next_to_close(&self) -> Option<u64> {
        let mut strangers: BTreeMap<HttpPeer, Vec<(Instant, u64)>> = BTreeMap::new();
        for (number, connection) in
            self.by_number.iter().filter(|(_, connection)| !connection.has_shown_token)
        {
            strangers.entry(connection.peer).or_default().push((connection.asked, *number));
        }
        let most = strangers.into_values().max_by_key(Vec::len)?;
        most.into_iter().min().map(|(_, number)| number)
    }
}

impl ConnectionEntry {
    /// The task to abort when the connection is closed for another; at once where it was closed already.
    pub(super) fn set_task(&self, task: AbortHandle) {
        match self.table.lock().by_number.get_mut(&self.number) {
            Some(connection) => connection.task = Some(task),
            None => task.abort(),
        }
    }

    /// Notes that the client asks something.
    pub(super) fn mark_active(&self) {
        if let Some(connection) = self.table.lock().by_number.get_mut(&self.number) {
            connection.asked = Instant::now();
        }
    }

    /// Notes that the client has shown the token.
    pub(super) fn mark_authenticated(&self) {
        if let Some(connection) = self.table.lock().by_number.get_mut(&self.number) {
            connection.has_shown_token = true;
        }
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.table.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(entry: &ConnectionEntry) -> bool {
        !entry.table.lock().by_number.contains_key(&entry.number)
    }

    #[test]
    fn the_client_with_most_connections_loses_the_one_that_asked_the_longest_ago() {
        let table = Arc::new(ConnectionTable::default());
        let admit = |uid| table.admit(HttpPeer::Unix { uid }, 4);
        let root = admit(0).unwrap();
        let user: Vec<Arc<ConnectionEntry>> = (0..3).map(|_| admit(1_000).unwrap()).collect();
        user[0].mark_active();
        let next = admit(1_000).unwrap();
        let another = admit(7).unwrap();
        let closed: Vec<bool> =
            user.iter().chain([&root, &next, &another]).map(|entry| is_closed(entry)).collect();
        assert_eq!(closed, [false, true, true, false, false, false]);
        drop(next);
        assert!(admit(1_000).is_some() && table.lock().by_number.len() <= 4);
    }

    #[test]
    fn a_connection_that_showed_the_token_is_not_closed() {
        let table = Arc::new(ConnectionTable::default());
        let known: Vec<Arc<ConnectionEntry>> =
            (0..3).map(|_| table.admit(HttpPeer::Tcp, 4).unwrap()).collect();
        known.iter().for_each(|entry| entry.mark_authenticated());
        let strangers: Vec<Arc<ConnectionEntry>> =
            (0..9).map(|_| table.admit(HttpPeer::Tcp, 4).unwrap()).collect();
        assert!(known.iter().chain(strangers.last()).all(|entry| !is_closed(entry)));
        strangers.last().unwrap().mark_authenticated();
        assert!(table.admit(HttpPeer::Tcp, 4).is_none());
    }
}
