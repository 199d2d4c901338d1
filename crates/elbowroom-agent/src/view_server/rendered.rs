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
/// Most bytes kept of one container: all of its pages on a machine of 256 CPUs. A page that is longer is not kept.
const MAX_OF_CONTAINER: usize = 1 << 20;
/// Most bytes kept of all, in each thread.
const MAX_OF_ALL: usize = 4 << 20;
/// What a page costs besides its text.
const OVERHEAD: usize = 128;

/// The pages that one thread keeps.
#[derive(Default)]
pub(super) struct RenderedPages {
    containers: HashMap<SlotHandle, CachedContainer>,
    bytes: usize,
}

#[derive(Default)]
struct CachedContainer {
    pages: HashMap<ViewNode, RenderedPage>,
    bytes: usize,
    used_at: Micros,
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
    /// The page of a node, if it is still good.
    pub fn get(&mut self, slot: SlotHandle, node: ViewNode, generation: u64, now: Micros) -> Option<&[u8]> {
        let container = self.containers.get_mut(&slot)?;
        let page = container.pages.get(&node)?;
        let fresh = page.generation == generation && now.saturating_sub(page.rendered_at) < FRESH_FOR;
        container.used_at = now;
        fresh.then_some(page.text.as_slice())
    }

    /// Keeps a page, in the place of an older one, and forgets others where there is no room.
    pub fn insert(&mut self, slot: SlotHandle, node: ViewNode, page: RenderedPage) {
        let cost = page.text.len() + OVERHEAD;
        let now = page.rendered_at;
        self.remove(slot, node);
        let of_container = self.containers.get(&slot).map_or(0, |container| container.bytes);
        if of_container + cost > MAX_OF_CONTAINER {
            self.forget(slot);
        }
        if cost > MAX_OF_CONTAINER {
            return;
        }
        while self.bytes + cost > MAX_OF_ALL {
            let oldest = self.containers.iter().min_by_key(|(_, container)| container.used_at);
            let oldest = *oldest.expect("what is kept belongs to a container").0;
            self.forget(oldest);
        }
        let container = self.containers.entry(slot).or_default();
        container.used_at = now;
        container.bytes += cost;
        container.pages.insert(node, page);
        self.bytes += cost;
    }

    fn remove(&mut self, slot: SlotHandle, node: ViewNode) {
        let Some(container) = self.containers.get_mut(&slot) else { return };
        if let Some(page) = container.pages.remove(&node) {
            container.bytes -= page.text.len() + OVERHEAD;
            self.bytes -= page.text.len() + OVERHEAD;
        }
    }

    fn forget(&mut self, slot: SlotHandle) {
        self.bytes -= self.containers.remove(&slot).map_or(0, |container| container.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: ViewNode = ViewNode::Zoneinfo;

    fn slot(serial: u64) -> SlotHandle {
        SlotHandle { serial }
    }

    fn page(generation: u64, at: Micros, len: usize) -> RenderedPage {
        RenderedPage { generation, rendered_at: at, text: vec![b'x'; len] }
    }

    #[test]
    fn a_page_is_good_for_its_version_and_its_time() {
        let mut pages = RenderedPages::default();
        let at = Micros::secs(5);
        pages.insert(slot(7), NODE, page(3, at, 10));
        let mut good = |serial, node, generation, now: Micros| {
            pages.get(slot(serial), node, generation, now).map(<[u8]>::len)
        };
        assert_eq!(good(7, NODE, 3, at), Some(10));
        assert_eq!(good(7, NODE, 3, at.saturating_add(Micros::millis(99))), Some(10));
        assert_eq!(good(7, NODE, 3, at.saturating_add(FRESH_FOR)), None, "the host's text is old");
        assert_eq!(good(7, NODE, 4, at), None, "another version");
        assert_eq!(good(7, ViewNode::Vmstat, 3, at), None, "another file");
        assert_eq!(good(8, NODE, 3, at), None, "another container");
    }

    #[test]
    fn memory_is_bounded_and_one_container_costs_no_other_its_pages() {
        let mut pages = RenderedPages::default();
        let at = |ms| Micros::millis(ms);
        pages.insert(slot(1), NODE, page(0, at(1), 1000));
        for n in 0..500u16 {
            pages.insert(slot(2), ViewNode::NumaNode(n), page(0, at(2), 10_000));
            assert!(pages.containers.get(&slot(2)).unwrap().bytes <= MAX_OF_CONTAINER);
        }
        assert!(pages.get(slot(1), NODE, 0, at(2)).is_some());
        pages.insert(slot(2), NODE, page(0, at(3), MAX_OF_CONTAINER));
        assert!(pages.get(slot(2), NODE, 0, at(3)).is_none(), "too long to be kept");
        for serial in 10..30 {
            pages.insert(slot(serial), NODE, page(0, at(serial), 900_000));
            assert!(pages.bytes <= MAX_OF_ALL);
        }
        assert!(pages.get(slot(29), NODE, 0, at(29)).is_some());
        assert!(pages.get(slot(1), NODE, 0, at(29)).is_none(), "used longest ago");
        let kept: usize = pages.containers.values().map(|container| container.bytes).sum();
        assert_eq!(kept, pages.bytes);
    }

    #[test]
    fn a_page_that_is_replaced_counts_once() {
        let mut pages = RenderedPages::default();
        for generation in 0..1_000 {
            pages.insert(slot(1), NODE, page(generation, Micros::millis(generation), 5_000));
        }
        assert_eq!(pages.bytes, 5_000 + OVERHEAD);
    }
}
