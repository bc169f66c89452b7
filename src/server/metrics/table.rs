//! How metrics are declared: `metrics!` makes a table, `labels!` the values of a label.

use std::marker::PhantomData;
use std::ops::Index;
use std::sync::Arc;

pub(super) use metrics::{Counter, Gauge, Histogram};
use metrics::{Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::PrometheusRecorder;

/// Declares a table of metrics: a struct with one registered handle for each row
/// `field: Handle = "name", "help";`. The help is the documentation of the field, too.
///
/// The handle is a [`Counter`], [`Gauge`] or [`Histogram`]; [`By`] or [`ByName`] of one for a metric
/// with a label, whose series all exist from the start; or [`Lookup`] of one if the values of its
/// labels are not known then. A histogram without the default buckets ends in `, in BUCKETS`.
macro_rules! metrics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Table:ident {
            $(
                $field_visibility:vis $field:ident: $Handle:ty = $name:literal, $help:literal
                $(, in $buckets:expr)?;
            )*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $Table {
            $( #[doc = $help] $field_visibility $field: $Handle, )*
        }

        impl $Table {
            /// Its histograms that do not have the default buckets.
            #[allow(dead_code, reason = "most tables have none")]
            pub(super) const BUCKETS: &'static [$crate::server::metrics::table::Buckets] =
                &[ $( $( ($name, $buckets), )? )* ];

            pub(super) fn new(register: &$crate::server::metrics::table::Register) -> Self {
                use $crate::server::metrics::table::Handle as _;
                Self { $( $field: <$Handle>::register(register, $name, $help), )* }
            }
        }
    };
}

/// Declares the values of a label: an enumeration, `enum Values: "label" { Value = "value", … }`.
/// For one that exists and has an `ALL`, names the label and the method that gives the value:
/// `Values: "label", method`.
macro_rules! labels {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $Values:ident: $label:literal {
            $( $(#[$value_attribute:meta])* $Value:ident = $value:literal, )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $Values {
            $( $(#[$value_attribute])* $Value, )*
        }

        impl $Values {
            pub(crate) const ALL: [Self; [$($value),*].len()] = [$(Self::$Value),*];

            pub(crate) fn label(self) -> &'static str {
                match self {
                    $( Self::$Value => $value, )*
                }
            }
        }

        labels!($Values: $label, label);
    };
    ($Values:ident: $label:literal, $value:ident) => {
        impl $crate::server::metrics::table::LabelValue for $Values {
            const LABEL: &'static str = $label;
            type Each<H> = [H; $Values::ALL.len()];

            fn each<H>(make: impl FnMut(Self) -> H) -> Self::Each<H> {
                Self::ALL.map(make)
            }

            fn index(self) -> usize {
                self as usize
            }

            fn value(self) -> &'static str {
                self.$value()
            }
        }
    };
}

pub(super) use {labels, metrics};

/// The name of a histogram and the upper bounds of its buckets.
pub(super) type Buckets = (&'static str, &'static [f64]);

/// Registers metrics that have these labels.
#[derive(Clone)]
pub(super) struct Register {
    recorder: Arc<PrometheusRecorder>,
    labels: Vec<Label>,
}

/// What a row of a table holds: one series, or several of one metric.
pub(super) trait Handle {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self;
}

impl Register {
    pub(super) fn new(recorder: Arc<PrometheusRecorder>) -> Self {
        let labels = Vec::new();
        Self { recorder, labels }
    }

    /// The same with one label more.
    pub(super) fn with(&self, label: &'static str, value: impl Into<SharedString>) -> Self {
        let mut register = self.clone();
        register.labels.push(Label::new(label, value.into()));
        register
    }

    fn key(&self, name: &'static str) -> Key {
        Key::from_parts(name, self.labels.clone())
    }
}

const METADATA: Metadata<'static> =
    Metadata::new("leasehold", Level::INFO, Some("leasehold::server::metrics"));

impl Handle for Counter {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        let recorder = &register.recorder;
        recorder.describe_counter(name.into(), None, help.into());
        recorder.register_counter(&register.key(name), &METADATA)
    }
}

impl Handle for Gauge {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        let recorder = &register.recorder;
        recorder.describe_gauge(name.into(), None, help.into());
        recorder.register_gauge(&register.key(name), &METADATA)
    }
}

impl Handle for Histogram {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        let recorder = &register.recorder;
        recorder.describe_histogram(name.into(), None, help.into());
        recorder.register_histogram(&register.key(name), &METADATA)
    }
}

/// The values of a label. `labels!` implements it.
pub trait LabelValue: Copy {
    /// The label.
    const LABEL: &'static str;
    /// One thing for each value.
    type Each<H>: AsRef<[H]>;

    /// Makes one thing for each value.
    fn each<H>(make: impl FnMut(Self) -> H) -> Self::Each<H>;

    /// Which of [`LabelValue::Each`] belongs to it.
    fn index(self) -> usize;

    /// The text of the label.
    fn value(self) -> &'static str;
}

/// A handle for each value of a label, by index.
pub struct By<L: LabelValue, H>(L::Each<H>);

impl<L: LabelValue, H: Handle> Handle for By<L, H> {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self(L::each(|value| {
            H::register(&register.with(L::LABEL, value.value()), name, help)
        }))
    }
}

impl<L: LabelValue, H> Index<L> for By<L, H> {
    type Output = H;

    fn index(&self, value: L) -> &H {
        &self.0.as_ref()[value.index()]
    }
}

/// The values of a label that are a list of names.
pub trait LabelNames {
    /// The label.
    const LABEL: &'static str;

    /// The names; `other` stands for all that are missing here.
    fn names() -> impl Iterator<Item = &'static str>;
}

/// A handle for each name of a list, and one for the names that are not in it.
pub struct ByName<N, H> {
    handles: Vec<(&'static str, H)>,
    other: H,
    names: PhantomData<fn() -> N>,
}

impl<N: LabelNames, H: Handle> Handle for ByName<N, H> {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        let of = |value| H::register(&register.with(N::LABEL, value), name, help);
        Self {
            handles: N::names().map(|name| (name, of(name))).collect(),
            other: of("other"),
            names: PhantomData,
        }
    }
}

impl<N, H> ByName<N, H> {
    /// The handle of this name.
    pub fn of(&self, name: &str) -> &H {
        let mut handles = self.handles.iter();
        let found = handles.find(|(known, _)| *known == name);
        found.map_or(&self.other, |(_, handle)| handle)
    }
}

/// A metric whose series appear when they are first needed, because only then the values of their
/// labels are known. A look-up takes locks: not for what happens with every request.
pub(super) struct Lookup<H> {
    register: Register,
    name: &'static str,
    help: &'static str,
    handle: PhantomData<fn() -> H>,
}

impl<H> Handle for Lookup<H> {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self {
            register: register.clone(),
            name,
            help,
            handle: PhantomData,
        }
    }
}

impl<H: Handle> Lookup<H> {
    /// The handle of the series with these labels.
    pub(super) fn find<const N: usize>(&self, labels: [(&'static str, SharedString); N]) -> H {
        let with = |register: Register, (label, value)| register.with(label, value);
        let register = labels.into_iter().fold(self.register.clone(), with);
        H::register(&register, self.name, self.help)
    }
}
