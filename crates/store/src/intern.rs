//! Keeps names that many tasks share once: a million queued tasks name few models.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hypha_model::{Metadata, MetadataValue, Name, TaskSpec};

/// The maximum number of interned names of each kind. Beyond it tasks have little in common, and each keeps its own.
const MAX_NAMES: usize = 10_000;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Interner {
    /// Models, executors, tenants.
    names: HashSet<Name>,
    /// Keys and categories of metadata.
    texts: HashSet<Arc<str>>,
    /// The specification that a tenant's ended tasks share.
    ended: HashMap<Option<Name>, Arc<TaskSpec>>,
}

impl Interner {
    /// Replaces names in `spec` by equal ones of earlier specifications.
    pub(crate) fn intern(&mut self, spec: &mut TaskSpec) {
        let requirement = &mut spec.requirement;
        let names = [&mut requirement.model, &mut requirement.executor, &mut spec.tenant];
        names.into_iter().flatten().for_each(|name| self.intern_name(name));
        if spec.metadata.is_empty() {
            return;
        }
        let entries = spec.metadata.iter().map(|(key, value)| {
            let value = match value {
                MetadataValue::Number(number) => MetadataValue::Number(*number),
                MetadataValue::Text(text) => MetadataValue::Text(self.intern_text(text)),
            };
            (self.intern_text(key), value)
        });
        // The same entries were valid before.
        if let Ok(metadata) = Metadata::new(entries) {
            spec.metadata = metadata;
        }
    }

    /// A specification with the tenant and nothing else.
    pub(crate) fn ended_spec(&mut self, tenant: Option<Name>) -> Arc<TaskSpec> {
        if let Some(known) = self.ended.get(&tenant) {
            return Arc::clone(known);
        }
        let spec = Arc::new(TaskSpec { tenant: tenant.clone(), ..TaskSpec::default() });
        if self.ended.len() < MAX_NAMES {
            self.ended.insert(tenant, Arc::clone(&spec));
        }
        spec
    }

    fn intern_name(&mut self, name: &mut Name) {
        match self.names.get(name.as_str()) {
            Some(known) => *name = known.clone(),
            None if self.names.len() < MAX_NAMES => {
                self.names.insert(name.clone());
            }
            None => {}
        }
    }

    fn intern_text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = Arc::from(text);
        if self.texts.len() < MAX_NAMES {
            self.texts.insert(Arc::clone(&text));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(number: usize) -> TaskSpec {
        let text = |text: &str| Arc::<str>::from(text);
        let mut spec = TaskSpec { tenant: "acme".parse().ok(), ..TaskSpec::default() };
        spec.requirement.model = "llama".parse().ok();
        let entries = [
            (text("tokens"), MetadataValue::Number(number as f64)),
            (text("kind"), MetadataValue::Text(text("chat"))),
        ];
        spec.metadata = Metadata::new(entries).unwrap();
        spec
    }

    #[test]
    fn equal_names_are_kept_once_and_nothing_else_changes() {
        let mut names = Interner::default();
        let specs: Vec<_> = (0..3)
            .map(|number| {
                let mut shared = spec(number);
                names.intern(&mut shared);
                assert_eq!(shared, spec(number));
                shared
            })
            .collect();
        let model = |spec: &TaskSpec| spec.requirement.model.as_ref().unwrap().as_str().as_ptr();
        let key = |spec: &TaskSpec| spec.metadata.iter().next().unwrap().0.as_ptr();
        for spec in &specs {
            assert_eq!((model(spec), key(spec)), (model(&specs[0]), key(&specs[0])));
        }
    }

    #[test]
    fn ended_tasks_of_a_tenant_share_one_specification() {
        let mut names = Interner::default();
        let mut ended = |tenant: &str| names.ended_spec(tenant.parse().ok());
        let (acme, other, none) = (ended("acme"), ended("other"), ended(""));
        assert!(Arc::ptr_eq(&acme, &ended("acme")) && Arc::ptr_eq(&none, &ended("")));
        assert_eq!(acme.tenant, "acme".parse().ok());
        assert_eq!(other.tenant, "other".parse().ok());
        assert_eq!(none.tenant, None);
    }

    #[test]
    fn interner_is_bounded() {
        let mut names = Interner::default();
        for number in 0..MAX_NAMES + 10 {
            let mut spec = TaskSpec::default();
            spec.requirement.model = format!("model-{number}").parse().ok();
            let entry = (Arc::from(format!("key-{number}")), MetadataValue::Number(0.0));
            spec.metadata = Metadata::new([entry]).unwrap();
            names.intern(&mut spec);
            names.ended_spec(spec.requirement.model);
        }
        let kept = [names.names.len(), names.texts.len(), names.ended.len()];
        assert_eq!(kept, [MAX_NAMES; 3]);
    }
}
