use elbowroom_agent::engines::oci::{apply_plan, bundle_container, bundle_of, parse_state};
use elbowroom_types::label::PREFIX;
use elbowroom_types::launch::LaunchPlan;
use elbowroom_types::label::RuntimeInjection;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const PROGRAM: &str = "/usr/bin/elbowroom-runtime";

fn list<'a>(config: &'a Value, path: &str) -> &'a [Value] {
    config.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(word: &Value) -> &str {
    let word = word.as_str().expect("variables are words");
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// Arbitrary bytes as what an OCI runtime says to its hook, as a bundle's configuration, and as the words that an engine says to a
/// runtime: no panic, what the wrapper puts into a configuration is there once, and what was there stays.
pub fn run(data: &[u8]) {
    let words = data.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    let words: Vec<OsString> = words.collect();
    if let Some(bundle) = bundle_of(&words) {
        let bundle = bundle.into_os_string().into_vec();
        assert!(bundle == b"." || words.iter().any(|word| word.as_encoded_bytes().ends_with(&bundle)));
    }
    let _ = parse_state(data);
    let Ok(config) = serde_json::from_slice::<Value>(data) else { return };
    let made = bundle_container(Path::new("/run/bundles/4f5e"), &config);
    assert!(made.id == "4f5e" && made.labels.keys().all(|key| key.starts_with(PREFIX)));
    let all = RuntimeInjection { java: true, openmp: true, libc: true, env: true };
    for (hook, injections) in [(true, RuntimeInjection::default()), (true, all), (false, all)] {
        let plan = LaunchPlan { hook, injections, seccomp: false, pressure_file: hook };
        let put = |config: &mut Value| apply_plan(config, plan, Path::new(PROGRAM), "/run/elbowroom");
        let mut changed = config.clone();
        if put(&mut changed).is_err() {
            continue;
        }
        let hooks = list(&changed, "/hooks/createContainer");
        let before = list(&config, "/hooks/createContainer");
        assert!(hooks.iter().any(|hook| hook["path"] == PROGRAM));
        assert!(before.iter().all(|hook| hooks.contains(hook) || hook["path"] == PROGRAM));
        let (env, before) = (list(&changed, "/process/env"), list(&config, "/process/env"));
        assert!(env.len() >= before.len());
        assert!(env.iter().zip(before).all(|(now, then)| now == then || name(now) == name(then)));
        let once = changed.clone();
        put(&mut changed).expect("it was of the right shape");
        assert_eq!(changed, once, "a second time changes nothing");
    }
}
