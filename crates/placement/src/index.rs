//! Trees that find the best worker without looking at all of them.
//!
//! A worker is a leaf. Each inner node holds bounds over the leaves below it: the least key, the earliest room, and
//! the most of each resource. A search descends only where the bounds leave a chance, so it visits a path instead of
//! the pool. Bounds are rounded in the worker's favour; the leaf makes the exact test.

/// What a leaf offers, or the best of each over the leaves below an inner node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    /// What the strategy minimises; infinite where no worker is available, and, under a strategy that
    /// needs room now, where there is none.
    pub(crate) key: f64,
    /// When there is room for one more task, in seconds of absolute time.
    pub(crate) room_at_s: f64,
    /// Run time relative to the hardware's, with the attempts that a success is expected to take.
    pub(crate) factor: f32,
    /// The round trip.
    pub(crate) rtt_s: f32,
    /// Ranks equally good workers: see `Member::tie_break`.
    pub(crate) tie_break: u64,
    /// Tasks at the worker, begun or not. Under strategies that predict, `factor` times the price instead: the bits
    /// of a float that is not negative, which order as it does.
    pub(crate) load_or_price: u32,
    pub(crate) cpu_milli: u32,
    pub(crate) memory_mib: u32,
    pub(crate) storage_mib: u32,
    pub(crate) gpu_memory_mib: u32,
    pub(crate) gpus: u32,
    /// One bit for each (hashed) capability of the worker; see `capability.rs`.
    pub(crate) capabilities: u64,
}

/// What a task needs of a leaf, in the units of [`Bounds`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Need {
    pub(crate) room_by_s: f64,
    pub(crate) cpu_milli: u32,
    pub(crate) memory_mib: u32,
    pub(crate) storage_mib: u32,
    pub(crate) gpu_memory_mib: u32,
    pub(crate) gpus: u32,
    pub(crate) capabilities: u64,
}

impl Need {
    /// The same without free amounts, for a task that need not begin at once.
    pub(crate) fn ignoring_free_amounts(self) -> Need {
        Need { cpu_milli: 0, memory_mib: 0, storage_mib: 0, ..self }
    }
}

impl Bounds {
    /// A leaf without a worker, or whose worker is not available.
    pub(crate) const NONE: Bounds = Bounds {
        key: f64::INFINITY,
        room_at_s: f64::INFINITY,
        factor: f32::INFINITY,
        rtt_s: f32::INFINITY,
        tie_break: u64::MAX,
        load_or_price: u32::MAX,
        cpu_milli: 0,
        memory_mib: 0,
        storage_mib: 0,
        gpu_memory_mib: 0,
        gpus: 0,
        capabilities: 0,
    };

    /// Whether a leaf below may do. False is certain, true is a maybe. Every task requires some capability, so it is
    /// false where there is no worker.
    pub(crate) fn may_satisfy(&self, need: &Need) -> bool {
        self.capabilities & need.capabilities == need.capabilities
            && self.room_at_s <= need.room_by_s
            && self.cpu_milli >= need.cpu_milli
            && self.memory_mib >= need.memory_mib
            && self.storage_mib >= need.storage_mib
            && self.gpus >= need.gpus
            && self.gpu_memory_mib >= need.gpu_memory_mib
    }

    fn join(&self, other: &Bounds) -> Bounds {
        Bounds {
            key: self.key.min(other.key),
            room_at_s: self.room_at_s.min(other.room_at_s),
            factor: self.factor.min(other.factor),
            rtt_s: self.rtt_s.min(other.rtt_s),
            tie_break: self.tie_break.min(other.tie_break),
            load_or_price: self.load_or_price.min(other.load_or_price),
            cpu_milli: self.cpu_milli.max(other.cpu_milli),
            memory_mib: self.memory_mib.max(other.memory_mib),
            storage_mib: self.storage_mib.max(other.storage_mib),
            gpu_memory_mib: self.gpu_memory_mib.max(other.gpu_memory_mib),
            gpus: self.gpus.max(other.gpus),
            capabilities: self.capabilities | other.capabilities,
        }
    }
}

/// About the depth of a tree of a million workers.
const STEPS_PER_EVALUATION: u32 = 20;
/// Nodes to visit only for a better tie break. Where all workers are equal the first path down finds the best tie
/// break; where they are nearly equal a second path may, and this bounds its cost.
const MAX_TIE_BREAK_STEPS: u32 = 20;

/// By how much scores may differ and still count as equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    /// Relative difference.
    pub(crate) share: f64,
    /// Absolute difference, in addition.
    pub(crate) amount: f64,
}

impl Tolerance {
    /// Only identical scores are equal.
    pub(crate) const ZERO: Tolerance = Tolerance { share: 0.0, amount: 0.0 };

    fn margin(&self, score: f64) -> f64 {
        self.share * score.abs().min(f64::MAX) + self.amount
    }
}

/// How far a search for the least has come, and when it ends. Of equals it finds the one with the lowest tie break.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    equal: Tolerance,
    /// The least score that was seen.
    least: f64,
    /// Scores up to this are as good as the least.
    tie_limit: f64,
    /// The best candidate: its position, its score and its tie break.
    found: Option<usize>,
    score: f64,
    tie_break: u64,
    looks_left: u32,
    /// Nodes to visit once something has been found: a node may combine the speed of one worker with the room of
    /// another, all the way down to its leaves.
    steps_left: u32,
    tie_break_steps_left: u32,
}

impl Search {
    /// `lower` bounds all scores from below.
    pub(crate) fn new(equal: Tolerance, lower: f64, looks: u32) -> Search {
        Search {
            equal,
            least: f64::INFINITY,
            tie_limit: lower + equal.margin(lower),
            found: None,
            score: f64::INFINITY,
            tie_break: u64::MAX,
            looks_left: looks,
            steps_left: STEPS_PER_EVALUATION.saturating_mul(looks),
            tie_break_steps_left: MAX_TIE_BREAK_STEPS,
        }
    }

    /// Whether scores of at least `lower` cannot improve the result, whatever their tie break.
    pub(crate) fn is_over(&self, lower: f64) -> bool {
        self.looks_left == 0 || !(lower <= self.tie_limit || self.is_less(lower))
    }

    /// Whether it is worth to search where scores are at least `lower` and tie breaks at least `tie_break`.
    pub(crate) fn may_improve(&self, lower: f64, tie_break: u64) -> bool {
        self.looks_left > 0
            && (self.is_less(lower) || self.may_win_tie(lower, tie_break))
            && (self.steps_left > 0 || self.least == f64::INFINITY)
    }

    /// The position of the last candidate in its tree, if it was found since the last call.
    pub(crate) fn take_found(&mut self) -> Option<usize> {
        self.found.take()
    }

    /// Whether it is less by more than the tolerance.
    fn is_less(&self, lower: f64) -> bool {
        lower < self.score - self.equal.margin(self.score)
    }

    fn may_win_tie(&self, lower: f64, tie_break: u64) -> bool {
        tie_break < self.tie_break && lower <= self.tie_limit && self.tie_break_steps_left > 0
    }

    fn count_step(&mut self, lower: f64) {
        self.steps_left = self.steps_left.saturating_sub(1);
        if !self.is_less(lower) {
            self.tie_break_steps_left = self.tie_break_steps_left.saturating_sub(1);
        }
    }

    fn record_candidate(&mut self, position: usize, score: f64, tie_break: u64) {
        self.looks_left -= 1;
        let is_first = self.least == f64::INFINITY;
        if score < self.least {
            self.least = score;
            self.tie_limit = score + self.equal.margin(score);
        }
        if is_first
            || self.is_less(score)
            || (tie_break < self.tie_break && score <= self.tie_limit)
        {
            (self.found, self.score, self.tie_break) = (Some(position), score, tie_break);
        }
    }
}

/// A complete binary tree over positions `0..capacity`.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Node 1 is the root, the children of node i are 2i and 2i+1, the leaves are the last half.
    nodes: Vec<Bounds>,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree { nodes: vec![Bounds::NONE; 2] }
    }

    pub(crate) fn root(&self) -> &Bounds {
        &self.nodes[1]
    }

    fn capacity(&self) -> usize {
        self.nodes.len() / 2
    }

    pub(crate) fn leaf(&self, position: usize) -> &Bounds {
        &self.nodes[self.capacity() + position]
    }

    /// Puts `leaf` at `position`, growing the tree if it must.
    pub(crate) fn set(&mut self, position: usize, leaf: Bounds) {
        while position >= self.capacity() {
            self.double();
        }
        let mut at = self.capacity() + position;
        if self.nodes[at] == leaf {
            return;
        }
        self.nodes[at] = leaf;
        while at > 1 {
            at /= 2;
            let joined = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
            if self.nodes[at] == joined {
                return;
            }
            self.nodes[at] = joined;
        }
    }

    /// The first position at or after `from` that `accept` accepts.
    pub(crate) fn first_from(
        &self,
        from: usize,
        need: &Need,
        accept: &mut impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.first_below(1, self.capacity(), from, need, accept)
    }

    fn first_below(
        &self,
        node: usize,
        width: usize,
        from: usize,
        need: &Need,
        accept: &mut impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        // The leftmost leaf below `node` is found by going left until the last level.
        let start = node * width - self.capacity();
        if start + width <= from || !self.nodes[node].may_satisfy(need) {
            return None;
        }
        if width == 1 {
            return accept(start).then_some(start);
        }
        self.first_below(2 * node, width / 2, from, need, accept)
            .or_else(|| self.first_below(2 * node + 1, width / 2, from, need, accept))
    }

    /// Visits leaves in a promising order. `lower` bounds from below what `visit` could return for the leaves under a
    /// node; `visit` returns the leaf's exact score, or `None` if it refuses. Where the bounds of both children are
    /// equal, the one with the lower tie break goes first.
    pub(crate) fn least(
        &self,
        need: &Need,
        lower: &impl Fn(&Bounds) -> f64,
        visit: &mut impl FnMut(usize) -> Option<f64>,
        search: &mut Search,
    ) {
        if self.nodes[1].may_satisfy(need) {
            self.least_below(1, need, lower, visit, search);
        }
    }

    fn least_below(
        &self,
        node: usize,
        need: &Need,
        lower: &impl Fn(&Bounds) -> f64,
        visit: &mut impl FnMut(usize) -> Option<f64>,
        search: &mut Search,
    ) {
        if node >= self.capacity() {
            let position = node - self.capacity();
            if let Some(score) = visit(position) {
                search.record_candidate(position, score, self.nodes[node].tie_break);
            }
            return;
        }
        let bound = |child: usize| {
            let bounds = &self.nodes[child];
            if bounds.may_satisfy(need) { lower(bounds) } else { f64::INFINITY }
        };
        let tie_break = |child: usize| self.nodes[child].tie_break;
        let [left, right] = [2 * node, 2 * node + 1].map(|child| (child, bound(child)));
        let left_first = match left.1.max(right.1) <= search.tie_limit {
            true => tie_break(left.0) <= tie_break(right.0),
            false => left.1 <= right.1,
        };
        let order = if left_first { [left, right] } else { [right, left] };
        for (child, bound) in order {
            if search.may_improve(bound, tie_break(child)) {
                search.count_step(bound);
                self.least_below(child, need, lower, visit, search);
            }
        }
    }

    fn double(&mut self) {
        let leaves = self.nodes[self.capacity()..].to_vec();
        let capacity = 2 * self.capacity();
        self.nodes = vec![Bounds::NONE; 2 * capacity];
        self.nodes[capacity..capacity + leaves.len()].copy_from_slice(&leaves);
        for at in (1..capacity).rev() {
            self.nodes[at] = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::Rng;

    const ANYTHING: Need = Need {
        room_by_s: 0.0,
        cpu_milli: 0,
        memory_mib: 0,
        storage_mib: 0,
        gpu_memory_mib: 0,
        gpus: 0,
        capabilities: 1,
    };

    fn leaf(key: f64, gpus: u32) -> Bounds {
        Bounds { key, room_at_s: 0.0, factor: 1.0, gpus, capabilities: 1, ..Bounds::NONE }
    }

    /// Compares the tree with a plain scan, on random pools and needs.
    #[test]
    fn search_agrees_with_a_linear_scan() {
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            let size = 1 + rng.below(70) as usize;
            let mut tree = Tree::new();
            let mut leaves = vec![Bounds::NONE; size];
            for _ in 0..2 * size {
                let at = rng.below(size as u64) as usize;
                leaves[at] = match rng.below(4) {
                    0 => Bounds::NONE,
                    _ => leaf(rng.below(50) as f64, rng.below(3) as u32),
                };
                tree.set(at, leaves[at]);
            }
            let need = Need { gpus: rng.below(3) as u32, ..ANYTHING };
            let from = rng.below(size as u64 + 3) as usize;
            let fits = |at: usize| leaves.get(at).is_some_and(|leaf| leaf.may_satisfy(&need));
            let scanned = (from..size).find(|&at| fits(at));
            assert_eq!(tree.first_from(from, &need, &mut |at| fits(at)), scanned);

            let least = (0..size).filter(|&at| fits(at)).map(|at| leaves[at].key);
            let least = least.fold(f64::INFINITY, f64::min);
            let mut search = Search::new(Tolerance::ZERO, 0.0, u32::MAX);
            let mut visit = |at: usize| fits(at).then(|| leaves[at].key);
            tree.least(&need, &|b| b.key, &mut visit, &mut search);
            assert_eq!(search.least, least);
            let found = search.take_found();
            assert_eq!(found.map(|at| leaves[at].key), (least < f64::INFINITY).then_some(least));
        }
    }

    #[test]
    fn a_search_visits_a_path_and_not_the_pool() {
        let mut tree = Tree::new();
        for at in 0..10_000 {
            tree.set(at, leaf(((at * 7919) % 10_000) as f64, 0));
        }
        let (mut visits, mut search) = (0, Search::new(Tolerance::ZERO, 0.0, u32::MAX));
        let mut visit = |at: usize| {
            visits += 1;
            Some(((at * 7919) % 10_000) as f64)
        };
        tree.least(&ANYTHING, &|b| b.key, &mut visit, &mut search);
        assert_eq!((search.least, visits), (0.0, 1));
    }

    #[test]
    fn ties_are_broken_along_one_path() {
        let tie_break = |at: usize| ((at * 7919 + 17) % 10_000) as u64;
        let mut tree = Tree::new();
        for at in 0..10_000 {
            // All within a hundredth of each other.
            let key = 100.0 + (at % 10) as f64 / 10.0;
            tree.set(at, Bounds { tie_break: tie_break(at), ..leaf(key, 0) });
        }
        for (share, turns) in [(0.01, 0..1), (0.0, 0..10_000)] {
            let equal = Tolerance { share, amount: 0.0 };
            let (mut visits, mut search) = (0, Search::new(equal, 100.0, u32::MAX));
            let mut visit = |at: usize| {
                visits += 1;
                Some(100.0 + (at % 10) as f64 / 10.0)
            };
            tree.least(&ANYTHING, &|b| b.key, &mut visit, &mut search);
            let found = search.take_found().map(tie_break);
            assert!(
                found.is_some_and(|tie_break| turns.contains(&tie_break)),
                "{share}: {found:?}"
            );
            assert!(visits <= 10, "{share}: {visits}");
        }
    }

    /// Tie breaks never exceed the tolerance in all, however many there are and in whatever order.
    #[test]
    fn tie_breaks_stay_within_the_tolerance_of_the_least() {
        let score = |at: usize| 1.0 + 0.005 * at as f64;
        for (order, most) in
            [((0..64).collect::<Vec<_>>(), 1.0101), ((0..64).rev().collect(), 1.0203)]
        {
            let mut search = Search::new(Tolerance { share: 0.01, amount: 0.0 }, 1.0, u32::MAX);
            for at in order {
                // The higher the score, the lower the tie break.
                search.record_candidate(at, score(at), 1_000 - at as u64);
            }
            let found = search.take_found().map(score);
            assert!(found.is_some_and(|found| found <= most && found == search.score), "{found:?}");
        }
    }
}
