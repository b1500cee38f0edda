//! Writing SVG: shapes by class, escaped text, and a style that is legible on light and dark.

use std::fmt::Write;

/// A drawing in progress. Coordinates are written with one decimal: enough for the eye, and the same on
/// every machine.
#[derive(Debug)]
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// How a text is aligned to its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

// Okabe and Ito's palette, which colour-blind readers can distinguish. The dark ones are the same hues, lighter.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:11px;fill:#24292f}
.bg{fill:#ffffff}.head{font-size:16px;font-weight:600}.panel{font-size:13px;font-weight:600}
.name{font-size:12px}.faint{fill:#57606a}.value{font-size:10px;fill:#57606a}
.grid{stroke:#d8dee4;stroke-width:1}.base{stroke:#8c959f;stroke-width:1}
.whisker{stroke:#24292f;stroke-width:1}.leader{stroke:#8c959f;stroke-width:0.7}
.mean{fill:#0072b2}.p99{fill:#e69f00}.other{fill:#8c959f}
.front{fill:none;stroke:#0072b2;stroke-width:1.5;stroke-dasharray:4 3}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.bg{fill:#0d1117}
.faint,.value{fill:#9da7b1}.grid{stroke:#262c34}.base{stroke:#6e7681}
.whisker{stroke:#e6edf3}.leader{stroke:#6e7681}.mean{fill:#56b4e9}.other{fill:#6e7681}
.front{stroke:#56b4e9}}";

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Svg {
        Svg { body: String::new(), width, height }
    }

    pub(crate) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.put(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    pub(crate) fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        self.put(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"/>"#
        ));
    }

    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")));
    }

    pub(crate) fn polygon(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(r#"<polygon class="{class}" points="{}"/>"#, points.join(" ")));
    }

    /// `text` with its baseline at the point.
    pub(crate) fn text(&mut self, class: &str, anchor: Anchor, (x, y): (f64, f64), text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{}</text>"#,
            escape(text)
        ));
    }

    /// The whole document; `title` is for screen readers.
    pub(crate) fn finish(self, title: &str) -> String {
        let Svg { body, width, height } = self;
        let title = escape(title);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img">
<title>{title}</title>
<style>{STYLE}</style>
<rect class="bg" width="100%" height="100%"/>
{body}</svg>
"#
        )
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _infallible = writeln!(self.body, "{element}");
    }
}

/// `text` for use within an element or an attribute. Characters that XML cannot hold become `�`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            char if char.is_control() => escaped.push('\u{fffd}'),
            char => escaped.push(char),
        }
    }
    escaped
}

/// `text` in at most `room` characters; the middle goes first, since names differ at their ends.
pub(crate) fn shorten(text: &str, room: usize) -> String {
    let count = text.chars().count();
    if count <= room {
        return text.to_owned();
    }
    let head = room / 2;
    let tail = room.saturating_sub(head + 1);
    let kept = text.chars().take(head).chain(['…']);
    kept.chain(text.chars().skip(count - tail)).collect()
}

/// About how wide `text` is in pixels. The reader's font is not known, so this is wider than most.
pub(crate) fn text_width(text: &str, font_px: f64) -> f64 {
    text.chars().count() as f64 * font_px * 0.58
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Fails unless `svg` is well nested, escaped and without NaN or infinity.
    #[track_caller]
    pub(crate) fn check_well_formed(svg: &str) {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let mut open: Vec<&str> = Vec::new();
        for piece in svg.split('<').skip(1) {
            let Some((tag, text)) = piece.split_once('>') else { panic!("unclosed: {piece}") };
            assert!(!text.contains('>'), "unescaped: {text}");
            let name = tag.split(' ').next().unwrap_or(tag);
            match name.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{piece}"),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
            for (at, _) in text.match_indices('&') {
                let known = ["&amp;", "&lt;", "&gt;", "&quot;"];
                assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "{text}");
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn text_is_escaped() {
        let check = |text, expected| assert_eq!(escape(text), expected);
        check("a<b>&\"c\"", "a&lt;b&gt;&amp;&quot;c&quot;");
        check("é\u{0}\n\u{ffff}", "é\u{fffd}\u{fffd}\u{fffd}");
        let mut svg = Svg::new(10.0, 20.0);
        svg.text("x", Anchor::Start, (1.0, 2.0), "</text><script>");
        check_well_formed(&svg.finish("</title>&"));
    }

    #[test]
    fn long_text_is_cut_in_the_middle() {
        let check = |text, room, expected| assert_eq!(shorten(text, room), expected);
        check("abcdef", 6, "abcdef");
        check("abcdefg", 6, "abc…fg");
        check("äöüäöüä", 5, "äö…üä");
        check("abc", 1, "…");
    }
}
