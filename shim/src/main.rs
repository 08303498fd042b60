//! shim
mod diagnostic;
mod executor;
mod layers;
mod probe;
mod supervise;
mod sys;
mod terminal;
mod turn;
fn main() {
    let mut args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == "--").unwrap();
    let command = args.split_off(at + 1);
    let cwd = std::env::current_dir().unwrap();
    let home = std::env::var("HOME").map(std::path::PathBuf::from).unwrap();
    let ctx = codeoid_spec::policy::Context { cwd, home };
    let policy = codeoid_spec::policy::resolve(Default::default(), Default::default(), None, &ctx).unwrap();
    match turn::run(&policy, command, None) {
        Ok(code) => std::process::exit(code.into()),
        Err(f) => { eprintln!("{f}"); std::process::exit(f.code.into()) }
    }
}
