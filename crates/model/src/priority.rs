//! The priority of a task: any finite number, higher goes first.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// Higher goes first. Any finite number, such as `0.9`, `5` or a measured fitness.
///
/// Serialised, a number of whole thousandths is the integer of thousandths that earlier versions wrote and read, and
/// any other is a float. So an integer always counts thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority(f64);

impl Priority {
    /// A priority; `None` if the number is not finite.
    pub fn new(number: f64) -> Option<Priority> {
        // Minus zero becomes zero: both are the default.
        number.is_finite().then_some(Priority(number + 0.0))
    }

    /// A priority in thousandths.
    pub fn from_milli(thousandths: i32) -> Priority {
        Priority(f64::from(thousandths) / 1e3)
    }

    /// The number.
    pub const fn as_f64(self) -> f64 {
        self.0
    }

    /// The same in thousandths, if that is exact.
    fn as_milli(self) -> Option<i32> {
        let thousandths = (self.0 * 1e3).round();
        let in_range = thousandths.abs() <= f64::from(i32::MAX);
        let thousandths = in_range.then_some(thousandths as i32)?;
        (Priority::from_milli(thousandths) == self).then_some(thousandths)
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Priority) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Priority) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Priority {
    fn eq(&self, other: &Priority) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Priority {}

impl Hash for Priority {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Priority {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_milli() {
            Some(thousandths) => serializer.serialize_i32(thousandths),
            None => serializer.serialize_f64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Priority, D::Error> {
        deserializer.deserialize_any(PriorityVisitor)
    }
}

struct PriorityVisitor;

impl Visitor<'_> for PriorityVisitor {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("thousandths as an integer, or a finite number")
    }

    fn visit_i64<E: de::Error>(self, thousandths: i64) -> Result<Priority, E> {
        i32::try_from(thousandths).map(Priority::from_milli).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, thousandths: u64) -> Result<Priority, E> {
        i32::try_from(thousandths).map(Priority::from_milli).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Priority, E> {
        Priority::new(number).ok_or_else(|| E::custom("a priority must be finite"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(number: f64) -> Priority {
        Priority::new(number).unwrap()
    }

    #[test]
    fn any_finite_number_is_a_priority_and_keeps_its_order() {
        let ascending = [f64::MIN, -1e30, -1.5, 0.0, 5e-324, 0.9, 0.91234567890123, 1e6, 1e300];
        for pair in ascending.windows(2) {
            assert!(priority(pair[0]) < priority(pair[1]), "{pair:?}");
        }
        assert_eq!(priority(-0.0), Priority::default());
        assert!([f64::NAN, f64::INFINITY].into_iter().all(|bad| Priority::new(bad).is_none()));
    }

    #[test]
    fn thousandths_are_written_as_before_and_everything_is_read_back() {
        let written = |it: Priority| serde_json::to_string(&it).unwrap();
        assert_eq!(written(priority(0.9)), "900");
        assert_eq!(written(priority(-1_000_000.0)), "-1000000000");
        assert_eq!(written(priority(0.91234)), "0.91234");
        for number in [0.0, -0.9, 0.001, 0.0001, 2_147_483.647, 2_147_483.648, 1e15, 1e300, 0.3] {
            let text = written(priority(number));
            assert_eq!(
                serde_json::from_str::<Priority>(&text).unwrap(),
                priority(number),
                "{text}"
            );
        }
        assert_eq!(serde_json::from_str::<Priority>("-900").unwrap(), priority(-0.9));
        assert!(serde_json::from_str::<Priority>("2147483648").is_err());
    }
}
