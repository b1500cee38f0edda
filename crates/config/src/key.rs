//! What a key is: its kind, its default, its documentation. Every consumer (unknown-key checks, types,
//! template, schema) reads it from here and from the tables in [`crate::keys`].

use std::time::Duration;

use hypha_model::NodeRole;

use crate::parse::{self, AddressUse, Problem, UrlUse};
use crate::sourced_value::{self, Origin, Raw, SourcedValue};

/// One key of a configuration file.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) preset: Preset,
    /// What it does, in sentences. The template wraps them, the schema takes them as they are.
    pub(crate) doc: &'static str,
}

/// The value of a key that is not given. The values are TOML.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    /// There is no sensible default: it must be given. This is an example.
    Required(&'static str),
    /// No value. This is an example of one.
    Absent(&'static str),
    /// This value.
    Is(&'static str),
    /// A value for each role.
    OfRole(fn(NodeRole) -> &'static str),
}

/// The values that a key accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A file that must exist.
    File,
    /// A file or a directory that must exist.
    Path,
    /// A list of files or directories that must exist.
    Paths,
    /// A directory that is created if it does not exist.
    Directory,
    /// A program: a path to one that exists, or a bare name.
    Program,
    Switch,
    Addresses(AddressUse),
    Networks,
    /// Names of this server, without ports.
    Hosts,
    /// Origins of web pages.
    Origins,
    Socket,
    /// A host and a port.
    HostPort,
    Choice(fn() -> Vec<&'static str>),
    /// A list of words.
    Choices(fn() -> Vec<&'static str>),
    Strategy,
    LogFilter,
    Attributes,
    Headers,
    Url(UrlUse),
    /// The path of an address, such as `/health`.
    UrlPath,
    Ratio,
    /// A part of something: neither none nor all of it.
    Share,
    Number,
    Count {
        min: u32,
        max: u32,
    },
    Seconds {
        min: Duration,
        max: Duration,
    },
    /// A duration whose bare number counts milliseconds.
    Millis {
        min: Duration,
        max: Duration,
    },
    /// An amount of memory or disk.
    Bytes,
    /// The size of something that may be small.
    Size {
        min: u64,
        max: u64,
    },
    Cores,
    Price,
    Label,
    Labels,
    /// A list of arbitrary strings.
    Texts,
    /// A table of strings.
    Environment,
    /// A table of priorities by name.
    Priorities,
    /// A list of hours of the week.
    Hours,
    TimeZone,
    Section(&'static [Key]),
    Entries(&'static [Key]),
}

impl Key {
    /// The value that holds when none is given.
    pub(crate) fn default_text(&self, role: NodeRole) -> Option<&'static str> {
        match self.preset {
            Preset::Required(_) | Preset::Absent(_) => None,
            Preset::Is(text) => Some(text),
            Preset::OfRole(of) => Some(of(role)),
        }
    }

    /// The default as a value.
    pub(crate) fn default_value(&self, role: NodeRole) -> Option<SourcedValue> {
        let text = self.default_text(role)?;
        // The tests of the tables find a default that is not TOML.
        sourced_value::value(text, &Origin::Default).ok()
    }

    pub(crate) fn required(&self) -> bool {
        matches!(self.preset, Preset::Required(_))
    }

    /// The keys below this one.
    pub(crate) fn below(&self) -> &'static [Key] {
        match self.kind {
            Kind::Section(keys) | Kind::Entries(keys) => keys,
            _ => &[],
        }
    }
}

impl Kind {
    /// Whether `given` is a value of this kind.
    pub(crate) fn check(self, given: &SourcedValue) -> Result<(), Problem> {
        match self {
            Kind::File | Kind::Path | Kind::Directory | Kind::Program => {
                parse::text(given, parse::PATH).map(drop)
            }
            Kind::Paths => parse::paths(given).map(drop),
            Kind::Switch => parse::switch(given).map(drop),
            Kind::Addresses(purpose) => parse::addresses(given, purpose).map(drop),
            Kind::Networks => parse::networks(given).map(drop),
            Kind::Hosts => parse::hosts(given).map(drop),
            Kind::Origins => parse::origins(given).map(drop),
            Kind::Socket => parse::socket(given).map(drop),
            Kind::HostPort => parse::host_port(given).map(drop),
            Kind::Choice(names) => parse::one_of(given, &names()).map(drop),
            Kind::Choices(names) => parse::some_of(given, &names()).map(drop),
            Kind::Strategy => parse::strategy(given).map(drop),
            Kind::LogFilter => parse::log_filter(given).map(drop),
            Kind::Attributes => parse::attributes(given).map(drop),
            Kind::Headers => parse::headers(given).map(drop),
            Kind::Url(purpose) => parse::url(given, purpose).map(drop),
            Kind::UrlPath => parse::url_path(given).map(drop),
            Kind::Ratio => parse::ratio(given).map(drop),
            Kind::Share => parse::share(given).map(drop),
            Kind::Number => parse::number(given).map(drop),
            Kind::Count { min, max } => parse::count(given, min, max).map(drop),
            Kind::Seconds { min, max } => parse::seconds(given, min, max).map(drop),
            Kind::Millis { min, max } => parse::millis(given, min, max).map(drop),
            Kind::Bytes => parse::bytes(given).map(drop),
            Kind::Size { min, max } => parse::size(given, min, max).map(drop),
            Kind::Cores => parse::cores(given).map(drop),
            Kind::Price => parse::price(given).map(drop),
            Kind::Label => parse::label(given).map(drop),
            Kind::Labels => parse::labels(given).map(drop),
            Kind::Texts => parse::texts(given).map(drop),
            Kind::Environment => parse::environment(given).map(drop),
            Kind::Priorities => parse::priorities(given).map(drop),
            Kind::Hours => parse::hours(given).map(drop),
            Kind::TimeZone => parse::time_zone(given).map(drop),
            Kind::Section(_) => match given.raw {
                Raw::Table(_) => Ok(()),
                _ => Err(Problem::expected("a section such as [name]", given)),
            },
            Kind::Entries(_) => match &given.raw {
                Raw::List(items) => items.iter().try_for_each(|item| match item.raw {
                    Raw::Table(_) => Ok(()),
                    _ => Err(Problem::expected("a table", item).at(item)),
                }),
                _ => Err(Problem::expected("a list of tables, each headed [[name]]", given)),
            },
        }
    }

    /// Whether it accepts a list, so that the environment may separate by commas.
    pub(crate) fn is_list(self) -> bool {
        matches!(
            self,
            Kind::Addresses(_)
                | Kind::Networks
                | Kind::Hosts
                | Kind::Origins
                | Kind::Choices(_)
                | Kind::Labels
                | Kind::Hours
                | Kind::Texts
                | Kind::Paths
                | Kind::Entries(_)
        )
    }
}
