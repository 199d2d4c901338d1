//! Completions for the shells people use: verbs and options as clap knows them, and names of containers as the agent knows them.

use anyhow::{Context, Result, ensure};
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Prints the names, one a line. Nothing without an agent, and nothing after a second with one that hangs. A user who makes a container
/// names it, and bash evaluates the words it is given: only names that no shell reads anything into are offered.
const NAMES: &str = "timeout 1 elbowroom list --all --quiet 2>/dev/null | env LC_ALL=C grep -E '^[A-Za-z0-9][A-Za-z0-9_./-]*$'";

/// Writes a file for each shell into `dir`.
pub(crate) fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for (shell, add) in [(Shell::Bash, bash as fn(&str) -> String), (Shell::Zsh, zsh), (Shell::Fish, fish)] {
        let file = clap_complete::generate_to(shell, &mut elbowroom::command(), "elbowroom", dir)
            .with_context(|| dir.display().to_string())?;
        let generated = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let text = add(&generated);
        ensure!(text.contains("elbowroom_containers"), "{}: there is no place for names", file.display());
        fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// The verbs whose first word is a container, and their other names.
fn verbs() -> Vec<String> {
    let command = elbowroom::command();
    let verbs = command
        .get_subcommands()
        .filter(|verb| verb.get_positionals().any(|arg| arg.get_id() == "container"));
    verbs
        .flat_map(|verb| [verb.get_name()].into_iter().chain(verb.get_visible_aliases()))
        .map(str::to_owned)
        .collect()
}

fn bash(generated: &str) -> String {
    let names = format!(
        r#"
_elbowroom_containers() {{
    {NAMES}
}}

_elbowroom_with_containers() {{
    local at names
    _elbowroom "$@"
    for ((at = 1; at < COMP_CWORD; at++)); do
        case "${{COMP_WORDS[at]}}" in
            --run-dir) ((at++)) ;;
            -*) ;;
            {verbs})
                if [[ $2 != -* && $3 != -* ]]; then
                    names=$(_elbowroom_containers)
                    COMPREPLY=($(compgen -W "$names" -- "$2"))
                fi
                return
                ;;
            *) return ;;
        esac
    done
}}
"#,
        verbs = verbs().join(" | ")
    );
    generated.replace("complete -F _elbowroom ", "complete -F _elbowroom_with_containers ") + &names
}

fn zsh(generated: &str) -> String {
    let names = format!(
        "_elbowroom_containers() {{\n    local -a names\n    names=(${{(f)\"$({NAMES})\"}})\n    compadd -a names\n}}\n"
    );
    let mut text = String::new();
    for line in generated.lines() {
        let is_container =
            ["':container -- ", "'::container -- "].iter().any(|argument| line.starts_with(argument));
        let line = if is_container {
            line.replace(":_default'", ":_elbowroom_containers'")
        } else {
            line.to_owned()
        };
        text.push_str(&line);
        text.push('\n');
        // The first line says what the file is for.
        if line.starts_with("#compdef") {
            text.push_str(&names);
        }
    }
    text
}

fn fish(generated: &str) -> String {
    let mut text = format!("{generated}\nfunction __fish_elbowroom_containers\n    {NAMES}\nend\n");
    for verb in verbs() {
        text.push_str(&format!(
            "complete -c elbowroom -n \"__fish_elbowroom_using_subcommand {verb}\" -f -a \"(__fish_elbowroom_containers)\"\n"
        ));
    }
    text
}
