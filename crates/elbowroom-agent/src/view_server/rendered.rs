//! Pages as they were rendered last, so that a repeated read costs a copy.
//!
//! A page is good for the version of its container's numbers that it shows, and for [`FRESH_FOR`]: what it quotes of the
//! host and of the clock has no version. Readers of the page cache wait longer for new numbers than that. Each thread of
//! the server has its own, so that no reader waits for a lock.

use crate::view_server::slots::SlotHandle;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::view_node::ViewNode;
use std::collections::HashMap;

/// How long a page is good while its container's numbers stay.
const FRESH_FOR: Micros = Micros::millis(100);
/// Most bytes kept of one tenant, a container with all that are in it: all of its pages on a machine of 256 CPUs. A page that is longer is
/// not kept.
const MAX_OF_TENANT: usize = 1 << 20;
/// Most bytes kept of all, in each thread.
const MAX_OF_ALL: usize = 4 << 20;
/// What a page costs besides its text.
const OVERHEAD: usize = 128;

/// The pages that a thread keeps.
#[derive(Default)]
pub(super) struct RenderedPages {
    /// By the account of the tenant.
    tenants: HashMap<usize, TenantPages>,
    bytes: usize,
}

#[derive(Default)]
struct TenantPages {
    pages: HashMap<(SlotHandle, ViewNode), RenderedPage>,
    bytes: usize,
    used_at: Micros,
}

/// A file of a container's view, and the account of its tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageKey {
    /// [`Slots::account`](crate::view_server::slots::Slots::account).
    pub account: usize,
    /// The container.
    pub slot: SlotHandle,
    /// The file.
    pub node: ViewNode,
}

/// One page.
pub(super) struct RenderedPage {
    /// Version of the numbers that it shows.
    pub generation: u64,
    /// When it was rendered.
    pub rendered_at: Micros,
    /// Its text.
    pub text: Vec<u8>,
}

impl RenderedPages {
    /// The page of a file, if it is still good.
    pub fn get(&mut self, key: PageKey, generation: u64, now: Micros) -> Option<&[u8]> {
        let tenant = self.tenants.get_mut(&key.account)?;
        let page = tenant.pages.get(&(key.slot, key.node))?;
        let fresh = page.generation == generation && now.saturating_sub(page.rendered_at) < FRESH_FOR;
        tenant.used_at = now;
        fresh.then_some(page.text.as_slice())
    }

    /// Keeps a page, in the place of an older one, and forgets others where there is no room: of the same tenant, where that has too many.
    pub fn insert(&mut self, key: PageKey, page: RenderedPage) {
        let cost = page.text.len() + OVERHEAD;
        let now = page.rendered_at;
        self.remove(key);
        let of_tenant = self.tenants.get(&key.account).map_or(0, |tenant| tenant.bytes);
        if of_tenant + cost > MAX_OF_TENANT {
            self.forget(key.account);
        }
        if cost > MAX_OF_TENANT {
            return;
        }
        while self.bytes + cost > MAX_OF_ALL {
            let oldest = self.tenants.iter().min_by_key(|(_, tenant)| tenant.used_at);
            let oldest = *oldest.expect("what is kept belongs to a tenant").0;
            self.forget(oldest);
        }
        let tenant = self.tenants.entry(key.account).or_default();
        tenant.used_at = now;
        tenant.bytes += cost;
        tenant.pages.insert((key.slot, key.node), page);
        self.bytes += cost;
    }

    fn remove(&mut self, key: PageKey) {
        let Some(tenant) = self.tenants.get_mut(&key.account) else { return };
        if let Some(page) = tenant.pages.remove(&(key.slot, key.node)) {
            tenant.bytes -= page.text.len() + OVERHEAD;
            self.bytes -= page.text.len() + OVERHEAD;
        }
    }

    fn forget(&mut self, account: usize) {
        self.bytes -= self.tenants.remove(&account).map_or(0, |tenant| tenant.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: ViewNode = ViewNode::Zoneinfo;

    /// A container that is in no other.
    fn key(serial: u64, node: ViewNode) -> PageKey {
        inside(serial as usize, serial, node)
    }

    /// One of a tenant's containers.
    fn inside(account: usize, serial: u64, node: ViewNode) -> PageKey {
        PageKey { account, slot: SlotHandle { serial }, node }
    }

    fn page(generation: u64, at: Micros, len: usize) -> RenderedPage {
        RenderedPage { generation, rendered_at: at, text: vec![b'x'; len] }
    }

    fn bytes_of(pages: &RenderedPages, account: usize) -> usize {
        pages.tenants.get(&account).map_or(0, |tenant| tenant.bytes)
    }

    #[test]
    fn a_page_is_good_for_its_version_and_its_time() {
        let mut pages = RenderedPages::default();
        let at = Micros::secs(5);
        pages.insert(key(7, NODE), page(3, at, 10));
        let mut good =
            |serial, node, generation, now| pages.get(key(serial, node), generation, now).map(<[u8]>::len);
        assert_eq!(good(7, NODE, 3, at), Some(10));
        assert_eq!(good(7, NODE, 3, at.saturating_add(Micros::millis(99))), Some(10));
        assert_eq!(good(7, NODE, 3, at.saturating_add(FRESH_FOR)), None, "the host's text is old");
        assert_eq!(good(7, NODE, 4, at), None, "another version");
        assert_eq!(good(7, ViewNode::Vmstat, 3, at), None, "another file");
        assert_eq!(good(8, NODE, 3, at), None, "another container");
        assert!(pages.get(inside(7, 8, NODE), 3, at).is_none(), "another container of the same tenant");
    }

    #[test]
    fn memory_is_bounded_and_one_container_costs_no_other_its_pages() {
        let mut pages = RenderedPages::default();
        let at = |ms| Micros::millis(ms);
        pages.insert(key(1, NODE), page(0, at(1), 1000));
        for n in 0..500u16 {
            pages.insert(key(2, ViewNode::NumaNode(n)), page(0, at(2), 10_000));
            assert!(bytes_of(&pages, 2) <= MAX_OF_TENANT);
        }
        assert!(pages.get(key(1, NODE), 0, at(2)).is_some());
        pages.insert(key(2, NODE), page(0, at(3), MAX_OF_TENANT));
        assert!(pages.get(key(2, NODE), 0, at(3)).is_none(), "too long to be kept");
        for serial in 10..30 {
            pages.insert(key(serial, NODE), page(0, at(serial), 900_000));
            assert!(pages.bytes <= MAX_OF_ALL);
        }
        assert!(pages.get(key(29, NODE), 0, at(29)).is_some());
        assert!(pages.get(key(1, NODE), 0, at(29)).is_none(), "used longest ago");
        let kept: usize = pages.tenants.values().map(|tenant| tenant.bytes).sum();
        assert_eq!(kept, pages.bytes);
    }

    #[test]
    fn the_containers_in_one_container_cost_no_neighbour_its_pages() {
        let mut pages = RenderedPages::default();
        pages.insert(key(1, NODE), page(0, Micros::millis(1), 1000));
        for serial in 100..356 {
            pages.insert(inside(2, serial, NODE), page(0, Micros::millis(2), 100_000));
            assert!(bytes_of(&pages, 2) <= MAX_OF_TENANT);
            assert!(pages.get(inside(2, serial, NODE), 0, Micros::millis(2)).is_some());
        }
        assert!(pages.get(key(1, NODE), 0, Micros::millis(3)).is_some());
    }

    #[test]
    fn a_page_that_is_replaced_counts_once() {
        let mut pages = RenderedPages::default();
        for generation in 0..1_000 {
            pages.insert(key(1, NODE), page(generation, Micros::millis(generation), 5_000));
        }
        assert_eq!(pages.bytes, 5_000 + OVERHEAD);
    }
}
