//! A list that grows without moving what is in it.

/// A list of a million things that grows page by page: a `Vec` would now and then copy all of it while everybody waits,
/// and has up to half of its memory unused.
#[derive(Clone, Debug)]
pub struct Pages<T>(Vec<Vec<T>>);

/// Things on a page: with tasks it has some kilobytes, which allocators pack without gaps. In larger ones a million
/// queued tasks took 3 % more. The list of pages itself takes less than a byte for each thing.
const PAGE: usize = 32;

impl<T> Default for Pages<T> {
    fn default() -> Pages<T> {
        Pages(Vec::new())
    }
}

impl<T> Pages<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PAGE + last.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one with this number.
    pub fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number / PAGE)?.get(number % PAGE)
    }

    /// The one with this number.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number / PAGE)?.get_mut(number % PAGE)
    }

    /// The one with this number. The list grows up to it if it is shorter.
    pub fn reach(&mut self, number: usize) -> &mut T
    where
        T: Default,
    {
        while self.len() <= number {
            if self.0.last().is_none_or(|last| last.len() == PAGE) {
                self.0.push(Vec::with_capacity(PAGE));
            }
            self.0.last_mut().into_iter().for_each(|last| last.push(T::default()));
        }
        &mut self.0[number / PAGE][number % PAGE]
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// All of them, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_that_does_not_move() {
        let mut pages = Pages::default();
        assert!(pages.is_empty() && pages.get(0).is_none());
        let first: *const usize = pages.reach(0);
        assert_eq!(pages.len(), 1);
        *pages.reach(5 * PAGE - 1) = 1;
        assert_eq!(pages.len(), 5 * PAGE);
        for number in 0..5 * PAGE {
            *pages.reach(number) = number;
        }
        assert_eq!(pages.len(), 5 * PAGE);
        assert_eq!(std::ptr::from_ref(pages.get(0).unwrap()), first);
        for number in [0, PAGE - 1, PAGE, 5 * PAGE - 1] {
            assert_eq!(pages.get(number), Some(&number));
        }
        assert_eq!(pages.get(5 * PAGE), None);
        *pages.get_mut(PAGE).unwrap() += 1;
        pages.iter_mut().for_each(|value| *value *= 2);
        let sum: usize = pages.iter().sum();
        assert_eq!(sum, 5 * PAGE * (5 * PAGE - 1) + 2);
    }
}
