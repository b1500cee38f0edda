//! Each pure crate has the clippy configuration that forbids what pure code must not use.

use super::Violation;
use super::layers::is_pure;
use super::workspace::Crate;

/// That configuration, from the root.
pub(super) const PURE_CLIPPY: &str = "xtask/pure-clippy.toml";

/// `configuration` is the text of [`PURE_CLIPPY`].
pub(super) fn check(crates: &[Crate], configuration: &str) -> Vec<Violation> {
    let pure = crates.iter().filter(|member| is_pure(&member.name));
    let without = pure.filter(|member| member.clippy.as_deref() != Some(configuration));
    without
        .map(|member| {
            let path = format!("crates/{}/clippy.toml", member.name);
            let what = format!("not a link to {PURE_CLIPPY}; `ln -sf ../../{PURE_CLIPPY} {path}`");
            Violation::new(&path, 1, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_crate_without_the_configuration_is_caught() {
        let member = |name: &str, clippy: Option<&str>| Crate {
            name: name.into(),
            clippy: clippy.map(str::to_owned),
            ..Crate::default()
        };
        let found = check(
            &[
                member("model", Some("a = 1")),
                member("engine", Some("a = 2")),
                member("sim", None),
                member("net", None),
            ],
            "a = 1",
        );
        let paths: Vec<_> = found.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, ["crates/engine/clippy.toml", "crates/sim/clippy.toml"]);
    }
}
