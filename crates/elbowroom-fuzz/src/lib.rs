//! Every decoder of foreign bytes as a function of arbitrary ones, and what must hold of its answer. `fuzz/` has a libFuzzer target for
//! each, and bytes to begin with; tests here feed each with those, and with changed ones.

#[cfg(test)]
mod corpus;
mod room;

macro_rules! targets {
    ($($name:ident)*) => {
        $(mod $name; pub use $name::run as $name;)*

        #[cfg(test)]
        mod tests {
            $(#[test] fn $name() { crate::corpus::feed(stringify!($name), crate::$name); })*

            #[test]
            fn every_target_is_in_the_list() {
                crate::corpus::compare_with_libfuzzers(&[$(stringify!($name)),*]);
            }
        }
    };
}

targets! {
    audit_file
    audit_image
    config
    control
    discover
    doctor
    engine_answer
    events
    fleet
    fleet_prometheus
    fuse_request
    kernel_text
    lease
    mountinfo
    notices
    nri
    oci
    probe
    profile_gpu
    profile_maps
    profile_symbols
    reach
    recording
    render_page
    replay
    seccomp
    state_files
    sysfs
    text_lines
}
