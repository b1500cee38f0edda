//! Names as dense numbers from 1, up to a bound. Zero: no name, or one too many.

use std::collections::BTreeMap;

use hypha_model::Name;
use serde::{Deserialize, Serialize};

/// The numbers of names, in the order in which they were first seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Name>", into = "Vec<Name>")]
pub(crate) struct NameInterner {
    list: Vec<Name>,
    numbers: BTreeMap<Name, u32>,
}

impl NameInterner {
    /// The number of `name`, assigned now if it is new and there is room for it under `bound` names.
    pub(crate) fn intern(&mut self, name: Option<&Name>, bound: usize) -> u32 {
        let Some(name) = name else { return 0 };
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        if self.list.len() >= bound {
            return 0;
        }
        self.list.push(name.clone());
        let number = self.list.len() as u32;
        self.numbers.insert(name.clone(), number);
        number
    }

    /// The name with this number.
    pub(crate) fn name(&self, number: u32) -> Option<&Name> {
        self.list.get((number as usize).checked_sub(1)?)
    }
}

impl From<Vec<Name>> for NameInterner {
    fn from(list: Vec<Name>) -> NameInterner {
        let numbered = list.iter().cloned().zip(1..);
        NameInterner { numbers: numbered.collect(), list }
    }
}

impl From<NameInterner> for Vec<Name> {
    fn from(names: NameInterner) -> Vec<Name> {
        names.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_bounded_and_survive_a_round_trip() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let mut names = NameInterner::default();
        let numbers: Vec<u32> =
            ["a", "b", "a", "c"].iter().map(|text| names.intern(Some(&name(text)), 2)).collect();
        assert_eq!((numbers, names.intern(None, 2)), (vec![1, 2, 1, 0], 0));
        assert_eq!((names.name(0), names.name(2)), (None, Some(&name("b"))));
        let mut again = NameInterner::from(Vec::from(names));
        assert_eq!(again.intern(Some(&name("b")), 9), 2);
    }
}
