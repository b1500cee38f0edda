//! Suggestions for unknown names.

/// The closest of `known` to `name`, if it is close enough to be a typo.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Much longer than any key: a typo does not double a name, and the work below is a product.
    const MAX_LENGTH: usize = 64;
    if name.len() > MAX_LENGTH {
        return None;
    }
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= tolerance(candidate))
        .min()
        .map(|(_, candidate)| candidate)
}

/// One typo in a short name, up to three in a long one; beyond that the guesses stop being likely.
fn tolerance(name: &str) -> usize {
    (name.len() / 4).clamp(1, 3)
}

/// How many letters must be changed, added, dropped or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = last[j] + usize::from(a[i] != b[j]);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["cert_pem", "key_pem", "gateway_addresses", "price"];
        let closest = |name: &str| closest(name, known.into_iter());
        assert_eq!(closest("gatway_addresses"), Some("gateway_addresses"));
        assert_eq!(closest("gateway_address"), Some("gateway_addresses"));
        assert_eq!(closest("cret_pem"), Some("cert_pem"));
        assert_eq!(closest("prize"), Some("price"));
        assert_eq!(closest("colour"), None);
        assert_eq!(closest(""), None);
        assert_eq!(closest(&"x".repeat(1 << 20)), None);
    }

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "", 0), ("", "ab", 2), ("ab", "", 2), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
