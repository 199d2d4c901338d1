//! The dashboard's files, as `npm run build` in `dashboard/` left them in `target/dashboard`.
//!
//! They are part of the program, so that the page works without a network and always fits the agent that serves it. Without
//! the feature `dashboard` there is one sentence in their place, and the rest is built without npm.

/// What a browser may do on the dashboard's behalf: run and draw what this server sent, ask this server, and nothing else.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file behind a path of the dashboard, with its content type; `None` where there is no such file.
pub(crate) fn asset(path: &str) -> Option<(&'static [u8], &'static str)> {
    FILES.iter().find(|file| file.path == path).map(|file| (file.bytes, file.content_type))
}

/// One file.
struct File {
    /// As in the address.
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

#[cfg(feature = "dashboard")]
macro_rules! file {
    ($path:literal, $name:literal, $content_type:literal) => {
        File {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/dashboard/", $name)),
        }
    };
}

#[cfg(feature = "dashboard")]
static FILES: &[File] = &[
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/assets/app.js", "app.js", "text/javascript; charset=utf-8"),
    file!("/assets/app.css", "app.css", "text/css; charset=utf-8"),
    file!("/assets/icon.svg", "icon.svg", "image/svg+xml"),
];

#[cfg(not(feature = "dashboard"))]
static FILES: &[File] = &[File {
    path: "/",
    content_type: "text/plain; charset=utf-8",
    bytes: b"This elbowroom was built without its dashboard: `make build` makes one with it. The API is at /api/v1/status.\n",
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_is_always_there_and_nothing_outside_is() {
        let (bytes, content_type) = asset("/").expect("a first page");
        assert!(!bytes.is_empty());
        assert!(content_type.starts_with("text/"));
        for path in ["", "/assets/", "/assets/../index.html", "/index.html", "assets/app.js", "/etc/passwd"] {
            assert!(asset(path).is_none(), "{path}");
        }
    }

    /// What the policy forbids must not be in the page, or it would be broken for all.
    #[test]
    fn the_page_has_no_inline_script_or_style_and_names_only_files_that_are_there() {
        assert!(!CONTENT_SECURITY_POLICY.contains("unsafe"));
        let page = std::str::from_utf8(asset("/").expect("a first page").0).expect("UTF-8");
        assert!(
            !page.contains("<style") && !page.contains(" style=") && !page.contains("<script>"),
            "{page}"
        );
        for reference in page.split("assets/").skip(1) {
            let name = &reference[..reference.find('"').expect("a quoted reference")];
            assert!(asset(&format!("/assets/{name}")).is_some(), "{name}");
        }
    }

    #[cfg(feature = "dashboard")]
    #[test]
    fn all_of_it_is_small() {
        let size: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(size < 160 << 10, "{size} bytes");
    }
}
