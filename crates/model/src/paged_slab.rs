//! A list of numbered items whose memory follows the number of items.

use std::collections::BTreeSet;

/// A list of a million items that grows page by page: a `Vec` would now and then copy all of them while every caller
/// waits, and leaves up to half of its memory unused. A page that has become empty is freed, and the lowest vacant
/// numbers are used first, so that the remaining items gather on few pages.
#[derive(Clone, Debug)]
pub struct PagedSlab<T> {
    pages: Vec<Page<T>>,
    /// The pages of the list that have room.
    pages_with_vacancy: BTreeSet<u32>,
    len: usize,
    /// One page that was freed: a list that grows and shrinks by one would otherwise allocate all the time.
    spare: Items<T>,
}

type Items<T> = Box<[Option<T>]>;

#[derive(Clone, Debug)]
struct Page<T> {
    /// One bit for each entry that is in use.
    used: u32,
    /// As many as there are entries, or none while all are vacant.
    items: Items<T>,
}

/// Items on a page: with tasks a page has some kilobytes, which allocators pack without gaps. With larger pages a
/// million queued tasks took 3 % more. The list of pages itself takes less than a byte for each item.
const PAGE_SIZE: usize = u32::BITS as usize;
/// Empty pages at the end of the list that one removal trims, some ten microseconds' work; the next removal continues.
const MAX_PAGES_TRIMMED: usize = 256;
/// A list of pages this short is not worth shrinking.
const MIN_PAGE_LIST: usize = 64;

impl<T> Default for PagedSlab<T> {
    fn default() -> PagedSlab<T> {
        PagedSlab {
            pages: Vec::new(),
            pages_with_vacancy: BTreeSet::new(),
            len: 0,
            spare: Box::default(),
        }
    }
}

impl<T> PagedSlab<T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One past the greatest number that may be in use.
    pub fn end(&self) -> usize {
        let Some((last, before)) = self.pages.split_last() else { return 0 };
        before.len() * PAGE_SIZE + (u32::BITS - last.used.leading_zeros()) as usize
    }

    /// The lowest vacant number.
    pub fn vacant(&self) -> usize {
        let Some(at) = self.pages_with_vacancy.first().map(|at| *at as usize) else {
            return self.pages.len() * PAGE_SIZE;
        };
        at * PAGE_SIZE + self.pages[at].used.trailing_ones() as usize
    }

    /// The item with this number.
    pub fn get(&self, number: usize) -> Option<&T> {
        self.pages.get(number / PAGE_SIZE)?.items.get(number % PAGE_SIZE)?.as_ref()
    }

    /// The item with this number.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.pages.get_mut(number / PAGE_SIZE)?.items.get_mut(number % PAGE_SIZE)?.as_mut()
    }

    /// Inserts an item under this number; returns the previous one.
    pub fn insert(&mut self, number: usize, value: T) -> Option<T> {
        let at = number / PAGE_SIZE;
        while self.pages.len() <= at {
            self.pages_with_vacancy.insert(self.pages.len() as u32);
            self.pages.push(Page { used: 0, items: Box::default() });
        }
        let page = &mut self.pages[at];
        if page.items.is_empty() {
            page.items = std::mem::take(&mut self.spare);
        }
        if page.items.is_empty() {
            page.items = (0..PAGE_SIZE).map(|_| None).collect();
        }
        let before = page.items[number % PAGE_SIZE].replace(value);
        if before.is_none() {
            self.len += 1;
            page.used |= 1 << (number % PAGE_SIZE);
            if page.used == u32::MAX {
                self.pages_with_vacancy.remove(&(at as u32));
            }
        }
        before
    }

    /// Removes the item with this number.
    pub fn remove(&mut self, number: usize) -> Option<T> {
        let at = number / PAGE_SIZE;
        let page = self.pages.get_mut(at)?;
        let gone = page.items.get_mut(number % PAGE_SIZE)?.take()?;
        self.len -= 1;
        if page.used == u32::MAX {
            self.pages_with_vacancy.insert(at as u32);
        }
        page.used &= !(1 << (number % PAGE_SIZE));
        if page.used == 0 {
            self.spare = std::mem::take(&mut page.items);
            self.trim_empty_pages();
        }
        Some(gone)
    }

    /// Trims empty pages at the end of the list.
    fn trim_empty_pages(&mut self) {
        for _ in 0..MAX_PAGES_TRIMMED {
            if self.pages.pop_if(|page| page.used == 0).is_none() {
                break;
            }
            self.pages_with_vacancy.remove(&(self.pages.len() as u32));
        }
        if self.pages.capacity() > MIN_PAGE_LIST.max(4 * self.pages.len()) {
            self.pages.shrink_to(MIN_PAGE_LIST.max(2 * self.pages.len()));
        }
    }

    /// All items, by number.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.items.iter().flatten())
    }

    /// All items, by number.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flat_map(|page| page.items.iter_mut().flatten())
    }

    /// How many items it has memory for.
    pub fn capacity(&self) -> usize {
        self.spare.len() + self.pages.iter().map(|page| page.items.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::collections::BTreeMap;

    #[test]
    fn items_do_not_move_when_the_list_grows() {
        let mut pages = PagedSlab::default();
        assert!(pages.is_empty() && pages.get(0).is_none());
        assert!(pages.insert(0, 0).is_none());
        let first: *const usize = pages.get(0).unwrap();
        for number in 0..5 * PAGE_SIZE {
            assert_eq!(pages.insert(number, number), (number == 0).then_some(0));
        }
        assert_eq!((pages.len(), pages.vacant()), (5 * PAGE_SIZE, 5 * PAGE_SIZE));
        assert_eq!(std::ptr::from_ref(pages.get(0).unwrap()), first);
        for number in [0, PAGE_SIZE - 1, PAGE_SIZE, 5 * PAGE_SIZE - 1] {
            assert_eq!(pages.get(number), Some(&number));
        }
        assert_eq!(pages.get(5 * PAGE_SIZE), None);
        *pages.get_mut(PAGE_SIZE).unwrap() += 1;
        pages.iter_mut().for_each(|value| *value *= 2);
        let sum: usize = pages.iter().sum();
        assert_eq!(sum, 5 * PAGE_SIZE * (5 * PAGE_SIZE - 1) + 2);
    }

    #[test]
    fn memory_follows_the_number_of_items() {
        const MANY: usize = 100_000;
        let orders: [fn(usize) -> usize; 3] =
            [|at| at, |at| MANY - 1 - at, |at| (at * 7_919) % MANY];
        for order in orders {
            let mut pages = PagedSlab::default();
            (0..MANY).for_each(|number| assert!(pages.insert(number, number).is_none()));
            assert!(pages.capacity() < MANY + 2 * PAGE_SIZE);
            for at in 0..MANY {
                assert_eq!(pages.remove(order(at)), Some(order(at)));
            }
            assert!(pages.is_empty() && pages.capacity() <= PAGE_SIZE, "{}", pages.capacity());
            // The removals of further tasks trim what one removal leaves of the list.
            for _ in 0..MANY / PAGE_SIZE / MAX_PAGES_TRIMMED + 1 {
                pages.insert(0, 0);
                pages.remove(0);
            }
            assert!(pages.pages.is_empty() && pages.pages_with_vacancy.is_empty());
            assert!(pages.pages.capacity() <= MIN_PAGE_LIST, "{}", pages.pages.capacity());
        }
    }

    proptest! {
        /// Compared with a map, with numbers as a scheduler assigns them.
        #[test]
        fn matches_a_map(steps in proptest::collection::vec((0u8..3, 0usize..200), 1..400)) {
            let (mut pages, mut map) = (PagedSlab::default(), BTreeMap::new());
            for (serial, (kind, number)) in steps.into_iter().enumerate() {
                match kind {
                    0 => prop_assert_eq!(pages.remove(number), map.remove(&number)),
                    1 => prop_assert_eq!(pages.insert(number, serial), map.insert(number, serial)),
                    _ => {
                        let vacant = pages.vacant();
                        prop_assert_eq!(Some(vacant), (0..).find(|at| !map.contains_key(at)));
                        pages.insert(vacant, serial);
                        map.insert(vacant, serial);
                    }
                }
                prop_assert_eq!(pages.len(), map.len());
                prop_assert!(pages.iter().eq(map.values()));
                prop_assert!(pages.capacity() <= PAGE_SIZE * (map.len() + 1));
            }
        }
    }
}
