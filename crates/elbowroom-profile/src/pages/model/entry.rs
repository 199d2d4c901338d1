//! One page-table entry, in a form of its own, from the two forms in which the kernel gives them.

/// What is mapped at one page of 4 KiB, if anything. A huge page is as many entries as it has pages.
///
/// Frame number in the low 52 bits, flags in the high ones; 0 where nothing is mapped. Swapped pages are not mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageTableEntry(u64);

/// Of an x86-64 entry: Intel SDM volume 3, 4.5, and `arch/x86/include/asm/pgtable_types.h`.
mod x86 {
    pub(super) const PRESENT: u64 = 1 << 0;
    pub(super) const ACCESSED: u64 = 1 << 5;
    /// In tables above the lowest: a leaf.
    pub(super) const PSE: u64 = 1 << 7;
    /// Set instead of [`PRESENT`] where the kernel has taken all access away (`PROT_NONE`, NUMA hinting).
    pub(super) const PROTNONE: u64 = 1 << 8;
    pub(super) const FRAME: u64 = 0x000f_ffff_ffff_f000;
}

/// Of an entry of `/proc/PID/pagemap`: `Documentation/admin-guide/mm/pagemap.rst`.
mod pagemap {
    pub(super) const PRESENT: u64 = 1 << 63;
    pub(super) const SWAPPED: u64 = 1 << 62;
    pub(super) const FRAME: u64 = (1 << 55) - 1;
}

impl PageTableEntry {
    const FRAME: u64 = (1 << 52) - 1;
    const MAPPED: u64 = 1 << 63;
    const ACCESSED: u64 = 1 << 62;
    const HUGE: u64 = 1 << 61;

    /// Pages of 4 KiB that an entry of a table of `level` translates: 1, 512 or 262144.
    pub const fn pages(level: u32) -> u64 {
        1 << (9 * (level - 1))
    }

    /// From what the processor reads in a table of `level` 1 (4 KiB pages), 2 (2 MiB) or 3 (1 GiB): the first page of a huge
    /// one. What leads to another table is nothing mapped.
    pub const fn from_x86(word: u64, level: u32) -> Self {
        let leaf = level == 1 || word & x86::PSE != 0;
        let there = word & x86::PRESENT != 0 || word & x86::PROTNONE != 0;
        if !leaf || !there {
            return Self(0);
        }
        // Entries without access hold their frame inverted, against L1TF (arch/x86/include/asm/pgtable-invert.h).
        let frame = if word & x86::PRESENT != 0 { word } else { !word };
        // Bit 12 of a huge entry is not of its frame.
        let frame = (frame & x86::FRAME) >> 12 & !(Self::pages(level) - 1);
        let accessed = if word & x86::ACCESSED != 0 { Self::ACCESSED } else { 0 };
        let huge = if level > 1 { Self::HUGE } else { 0 };
        Self(Self::MAPPED | accessed | huge | frame)
    }

    /// From an entry of `/proc/PID/pagemap`. Whether it was accessed, and whether the page is huge, it does not say.
    pub(crate) const fn from_pagemap(word: u64) -> Self {
        if word & pagemap::PRESENT == 0 || word & pagemap::SWAPPED != 0 {
            return Self(0);
        }
        Self(Self::MAPPED | word & pagemap::FRAME & Self::FRAME)
    }

    /// The entry `pages` further within the same huge page.
    #[must_use]
    pub const fn within(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// Whether there is a page.
    pub(crate) const fn is_mapped(self) -> bool {
        self.0 & Self::MAPPED != 0
    }

    /// Whether the processor has used it since that was last forgotten.
    pub(crate) const fn is_accessed(self) -> bool {
        self.0 & Self::ACCESSED != 0
    }

    /// Whether a single entry of a higher table maps it.
    pub(crate) const fn is_huge(self) -> bool {
        self.0 & Self::HUGE != 0
    }

    /// The number of its frame of 4 KiB.
    pub const fn frame(self) -> u64 {
        self.0 & Self::FRAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_of_one_page_are_the_same_frame() {
        let x86 = PageTableEntry::from_x86(0x8000_0001_2345_6067, 1);
        let pagemap = PageTableEntry::from_pagemap(0x8100_0000_0012_3456);
        assert_eq!((x86.frame(), pagemap.frame()), (0x12_3456, 0x12_3456));
        assert!(x86.is_mapped() && pagemap.is_mapped() && x86.is_accessed() && !pagemap.is_accessed());
    }

    #[test]
    fn a_huge_page_is_its_pages() {
        let first = PageTableEntry::from_x86(0x8000_0001_2340_00e7, 2);
        assert!(first.is_huge() && first.is_mapped());
        assert_eq!((first.frame(), first.within(511).frame()), (0x12_3400, 0x12_35ff));
        // PAT of a huge entry is bit 12.
        assert_eq!(PageTableEntry::from_x86(0x8000_0001_2340_10e7, 2).frame(), 0x12_3400);
    }

    #[test]
    fn what_leads_to_a_table_or_to_swap_is_not_mapped() {
        for entry in [
            PageTableEntry::from_x86(0x1234_5067, 2),
            PageTableEntry::from_x86(0, 1),
            PageTableEntry::from_x86(0x1234_5000, 1),
            PageTableEntry::from_pagemap(0),
            PageTableEntry::from_pagemap(1 << 62 | 77),
        ] {
            assert!(!entry.is_mapped(), "{entry:?}");
        }
    }

    #[test]
    fn pages_without_access_have_their_frame_too() {
        let word = !0x1_2345_6000u64 & x86::FRAME | x86::PROTNONE;
        let entry = PageTableEntry::from_x86(word, 1);
        assert!(entry.is_mapped());
        assert_eq!(entry.frame(), 0x12_3456);
    }

    proptest! {
        #[test]
        fn frames_never_leak_into_flags(word: u64, level in 1u32..=3) {
            let entry = PageTableEntry::from_x86(word, level);
            prop_assert!(entry.frame() < 1 << 40);
            prop_assert_eq!(entry.is_huge(), entry.is_mapped() && level > 1);
            let _ = PageTableEntry::from_pagemap(word).frame();
        }
    }
}
