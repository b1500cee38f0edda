//! Chooses the cores that a run is pinned to: those that the fewest other runs use.

pub(super) struct Cores {
    used: Vec<u32>,
}

impl Cores {
    pub(super) fn of_this_machine() -> Cores {
        let count = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Cores { used: vec![0; count] }
    }

    /// Takes `count` cores. Returns none, which means no pinning, if none or all are requested.
    pub(super) fn take(&mut self, count: usize) -> Vec<usize> {
        if count == 0 || count >= self.used.len() {
            return Vec::new();
        }
        let mut cores: Vec<usize> = (0..self.used.len()).collect();
        cores.sort_by_key(|core| (self.used[*core], *core));
        cores.truncate(count);
        cores.iter().for_each(|core| self.used[*core] += 1);
        cores
    }

    pub(super) fn release(&mut self, cores: &[usize]) {
        for core in cores {
            self.used[*core] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_used_cores_are_taken_and_released() {
        let mut cores = Cores { used: vec![0; 4] };
        assert_eq!(cores.take(0), [] as [usize; 0]);
        assert_eq!(cores.take(4), [] as [usize; 0], "all cores need no pinning");
        let first = cores.take(2);
        assert_eq!(first, [0, 1]);
        assert_eq!(cores.take(2), [2, 3]);
        cores.release(&first);
        assert_eq!(cores.take(1), [0]);
        assert_eq!(cores.take(2), [1, 0]);
    }
}
