//! What ZFS's cache gives back: the kernel has it neither as page cache nor in `MemAvailable` (openzfs/zfs#10255), and on a machine that has
//! been up for a day it may be most of what looks used.

use crate::root::Root;
use elbowroom_types::unit::Bytes;

/// What the kernel can take of the cache: what is evictable (module/zfs/arc.c, `arc_evictable_memory`), down to the cache's smallest size.
/// Half of it where ZFS bounds what one call of its shrinker takes (`zfs_arc_shrinker_limit`, the default before OpenZFS 2.3): it comes
/// slower then than who allocates may ask. Nothing on a machine without ZFS.
pub fn evictable_cache(root: &Root) -> Bytes {
    let Ok(text) = root.read("/proc/spl/kstat/zfs/arcstats") else { return Bytes::ZERO };
    let of = |key: &str| Some(Bytes(field(&text, key)?));
    let evictable =
        ["mru_evictable_data", "mru_evictable_metadata", "mfu_evictable_data", "mfu_evictable_metadata"];
    let evictable: Option<Bytes> = evictable.into_iter().map(of).sum();
    let (Some(evictable), Some(size), Some(least)) = (evictable, of("size"), of("c_min")) else {
        return Bytes::ZERO;
    };
    let whole = evictable.min(size.saturating_sub(least));
    let limit = root.read("/sys/module/zfs/parameters/zfs_arc_shrinker_limit");
    let is_bounded = limit.is_ok_and(|limit| limit.trim() != "0");
    if is_bounded { Bytes(whole.get() / 2) } else { whole }
}

/// `size 4 17179869184`: name, type, value.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn the_cache_of_zfs_gives_what_is_evictable_down_to_its_smallest_size() {
        let of = |text: &str| {
            let host = Fixture::new(text).unwrap();
            evictable_cache(&Root::at(host.path()).unwrap())
        };
        let stats = "-- proc/spl/kstat/zfs/arcstats --\n9 1 0x01 147 39984 4186 89\nname type data\nhits 4 7\nmru_evictable_data 4 3000\n\
                     mru_evictable_metadata 4 100\nmfu_evictable_data 4 2000\nmfu_evictable_metadata 4 0\nc 4 9\nc_min 4 1000\nsize 4 6500\n";
        let limit = |n: u64| format!("-- sys/module/zfs/parameters/zfs_arc_shrinker_limit --\n{n}\n");
        assert_eq!(of(stats), Bytes(5_100));
        assert_eq!(of(&(stats.to_owned() + &limit(0))), Bytes(5_100));
        assert_eq!(of(&(stats.to_owned() + &limit(10_000))), Bytes(2_550));
        assert_eq!(of(&stats.replace("size 4 6500", "size 4 4000")), Bytes(3_000));
        assert_eq!(of(&stats.replace("size 4 6500", "size 4 900")), Bytes::ZERO);
        assert_eq!(of(&stats.replace("c_min 4 1000\n", "")), Bytes::ZERO);
        assert_eq!(of("-- proc/meminfo --\n"), Bytes::ZERO);
    }
}
