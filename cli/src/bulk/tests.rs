//! Runs with a model of the tests: they continue an output, try failed rows again, and touch no other file.

mod chunked;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use trireme_columns::{Format, Table};

use super::ask::{Refused, Vectors};
use super::*;
use crate::bulk::rows::{Embedding, Facts};

/// Rows of the input: more than a first window has.
const ROWS: usize = 5000;

/// The formats of the output, by the ends of names.
const FORMATS: [&str; 3] = ["jsonl", "parquet", "arrow"];

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bulk: BulkArgs,
}

/// A model whose vectors are the lengths of texts in this direction. It takes this many texts, and never one that is `bad`. It tells its
/// space where it has one. With windows it gives a vector for each so many characters.
struct Lengths {
    windows: Option<usize>,
    space: Option<&'static str>,
    direction: [f32; 2],
    left: AtomicUsize,
    bad: &'static str,
}

impl Lengths {
    fn new() -> Lengths {
        Lengths { windows: None, space: None, direction: [1.0, 2.0], left: AtomicUsize::new(usize::MAX), bad: "" }
    }
}

impl Embed for Lengths {
    fn ask(&self, texts: &[String], if_space: Option<&str>) -> Result<Vectors, Refused> {
        let is_asked = |spaces: &str| spaces.split(", ").any(|space| Some(space) == self.space);
        if !if_space.is_none_or(is_asked) {
            return Err(Refused::Everything("the model has another space".to_owned()));
        }
        let took = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(texts.len()));
        if took.is_err() {
            return Err(Refused::Everything("the power is off".to_owned()));
        }
        if texts.iter().any(|text| text == self.bad) {
            return Err(Refused::Texts("a bad text".to_owned()));
        }
        let vector = |text: &str| self.direction.map(|number| number * (1 + text.len()) as f32).to_vec();
        let embeddings = |text: &String| match self.windows {
            None => vec![Embedding::of_text(vector(text))],
            Some(most) => (0..text.len())
                .step_by(most)
                .map(|start| {
                    let end = text.len().min(start + most);
                    Embedding { characters: Some(start as u64..end as u64), vector: vector(&text[start..end]) }
                })
                .collect(),
        };
        let (rows, facts) = (texts.iter().map(embeddings).collect(), Facts { tokens: texts.len() as u64, cut: 0 });
        Ok(Vectors { rows, facts, space: self.space.map(str::to_owned) })
    }
}

/// A folder with an input of [`ROWS`] rows.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        let lines: Vec<String> = (0..ROWS).map(|row| format!("text {row}")).collect();
        fs::write(folder.path("in.jsonl"), lines.join("\n")).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the command with this model. The tests have no server: its URL is never asked.
    fn bulk(&self, input: &str, output: &str, model: &Lengths, flags: &[&str]) -> anyhow::Result<Summary> {
        let paths = [self.path(input), self.path(output)];
        let words = ["bulk".into(), paths[0].clone(), paths[1].clone()];
        let rest =
            ["--server", "http://unused", "--texts", "100", "--window", "1"].iter().chain(flags).map(PathBuf::from);
        let model_flag = if flags.contains(&"--model") { vec![] } else { vec!["--model", "m"] };
        let words = words.into_iter().chain(rest).chain(model_flag.iter().map(PathBuf::from));
        let args = Command::try_parse_from(words).unwrap().bulk;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (run, _lock) = tokio::task::block_in_place(|| Run::open(&args))?;
            run.embed(model, SERVER, &Model::Named(&args.model))
        })
    }

    fn whole(&self, output: &str) {
        assert_eq!(self.bulk("in.jsonl", output, &Lengths::new(), &[]).unwrap().rows, ROWS as u64);
    }

    /// Begins an output, and is cut off.
    fn half(&self, output: &str) {
        let model = Lengths { left: AtomicUsize::new(3000), ..Lengths::new() };
        let error = self.bulk("in.jsonl", output, &model, &[]).err().unwrap().to_string();
        assert!(error.contains("the power is off"), "{error}");
        assert!(
            !self.path(output).exists() && fs::read_dir(self.path(&format!("{output}.parts"))).unwrap().count() >= 2
        );
    }

    /// The content of all files.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
                }
            }
        }
        found
    }
}

/// The vectors of an output.
fn vectors(path: &Path) -> Vec<Value> {
    let format = match path.extension().unwrap().to_str().unwrap() {
        "parquet" => Format::Parquet,
        "arrow" => Format::Arrow,
        _ => {
            let text = fs::read_to_string(path).unwrap();
            return text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["embedding"].take()).collect();
        }
    };
    let bytes: bytes::Bytes = fs::read(path).unwrap().into();
    let table = Table::open(Arc::new(bytes), format).unwrap();
    table.batches(0, 1000).unwrap().flat_map(|batch| batch.unwrap().json("embedding").unwrap()).collect()
}

#[track_caller]
fn assert_whole(path: &Path) {
    let expected: Vec<Value> = (0..ROWS)
        .map(|row| {
            let length = (1 + format!("text {row}").len()) as f64;
            json!([length, 2.0 * length])
        })
        .collect();
    assert!(vectors(path) == expected, "{}", path.display());
}

/// The name of a case, a part of its error, and a function that puts files in the place of an output, or beside it.
type Case = (&'static str, &'static str, fn(&Folder, &str));

/// Everything that is no output of this very job.
const CASES: &[Case] = &[
    ("notes", "is there already, and no", |folder, out| fs::write(folder.path(out), "my\nnotes\n").unwrap()),
    ("notes without an end", "is there already, and no", |folder, out| {
        fs::write(folder.path(out), "my\nnotes").unwrap()
    }),
    ("an empty file", "is there already, and no", |folder, out| fs::write(folder.path(out), "").unwrap()),
    ("an output whose job is gone", "is there already, and no", |folder, out| {
        folder.whole(out);
        fs::remove_file(folder.path(&format!("{out}.job.json"))).unwrap();
    }),
    ("a file of errors", "errors.jsonl is there already, and no", |folder, out| {
        fs::write(folder.path(&format!("{out}.errors.jsonl")), "{}\n").unwrap();
    }),
    ("a folder of parts", "parts is there already, and no", |folder, out| {
        fs::create_dir(folder.path(&format!("{out}.parts"))).unwrap();
        fs::write(folder.path(&format!("{out}.parts/mine.partial")), "mine").unwrap();
    }),
    ("a file for a folder of parts", "parts is there already, and no", |folder, out| {
        fs::write(folder.path(&format!("{out}.parts")), "mine").unwrap();
    }),
    ("another program's job", "is no file of a job", |folder, out| {
        fs::write(folder.path(&format!("{out}.job.json")), r#"{"job": "mine"}"#).unwrap();
    }),
    ("a text as job", "is no file of a job", |folder, out| {
        fs::write(folder.path(&format!("{out}.job.json")), "mine").unwrap();
    }),
    ("a job of another form", "'trireme_bulk_job' is 99 in", |folder, out| {
        fs::write(folder.path(&format!("{out}.job.json")), r#"{"trireme_bulk_job": 99}"#).unwrap();
    }),
    ("a whole output that was changed", "is not the file that trireme bulk has written", |folder, out| {
        let model = Lengths { bad: "text 7", ..Lengths::new() };
        folder.bulk("in.jsonl", out, &model, &[]).unwrap();
        let bytes = fs::read(folder.path(out)).unwrap();
        fs::write(folder.path(out), &bytes[..bytes.len() - 1]).unwrap();
    }),
    ("notes beside half an output", "is not the file that trireme bulk has written", |folder, out| {
        folder.half(out);
        fs::write(folder.path(out), "my notes").unwrap();
    }),
    ("errors beside half an output", "errors.jsonl is there already", |folder, out| {
        folder.half(out);
        fs::write(folder.path(&format!("{out}.errors.jsonl")), "{}\n").unwrap();
    }),
    ("half an output of another model", "'model' is \"other\" in", |folder, out| {
        let model = Lengths { left: AtomicUsize::new(3000), ..Lengths::new() };
        folder.bulk("in.jsonl", out, &model, &["--model", "other"]).err().unwrap();
    }),
    ("a whole output of another model", "'model' is \"other\" in", |folder, out| {
        folder.bulk("in.jsonl", out, &Lengths::new(), &["--model", "other"]).unwrap();
    }),
    ("half an output of a model that has changed", "gives another vector for a text", |folder, out| {
        let model = Lengths { direction: [1.0, 1.0], left: AtomicUsize::new(3000), ..Lengths::new() };
        folder.bulk("in.jsonl", out, &model, &[]).err().unwrap();
    }),
    ("half an output of another input", "'input' is", |folder, out| {
        folder.half(out);
        let text = fs::read_to_string(folder.path("in.jsonl")).unwrap();
        fs::write(folder.path("in.jsonl"), text.replace("text 4999", "next 4999")).unwrap();
    }),
    ("a whole output", "is there already, and no row lacks a vector", |folder, out| folder.whole(out)),
    ("the input", "IN and OUT are one file", |folder, out| {
        fs::hard_link(folder.path("in.jsonl"), folder.path(out)).unwrap();
    }),
    ("a link to the input", "IN and OUT are one file", |folder, out| {
        symlink("in.jsonl", folder.path(out)).unwrap();
    }),
    ("a folder", "it is a folder", |folder, out| fs::create_dir(folder.path(out)).unwrap()),
];

#[test]
fn nothing_that_is_not_of_this_very_job_is_changed_or_continued() {
    for format in FORMATS {
        for (what, said, prepare) in CASES {
            let folder = Folder::new();
            let output = format!("out.{format}");
            prepare(&folder, &output);
            let before = folder.files();
            let refused = folder.bulk("in.jsonl", &output, &Lengths::new(), &[]);
            let error = format!("{:#}", refused.err().unwrap_or_else(|| panic!("{format}: {what} is taken")));
            assert!(error.contains(said), "{format}: {what}: {error}");
            assert!(folder.files() == before, "{format}: {what} is changed");
        }
    }
}

#[test]
fn a_run_that_was_cut_off_goes_on_and_the_output_appears_whole() {
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("out.{format}");
        folder.half(&output);
        // The place of the input does not matter, nor what a crash leaves of a file that was being written.
        fs::rename(folder.path("in.jsonl"), folder.path("moved.jsonl")).unwrap();
        let parts = folder.path(&format!("{output}.parts"));
        fs::write(parts.join("0000000000002048-7.part.partial"), "torn").unwrap();
        folder.bulk("moved.jsonl", &output, &Lengths::new(), &[]).unwrap();
        assert_whole(&folder.path(&output));
        let mut left: Vec<_> = folder.files().into_keys().collect();
        left.retain(|path| path.file_name().unwrap() != "moved.jsonl");
        assert_eq!(left, [folder.path(&output), folder.path(&format!("{output}.job.json"))], "{format}");

        // Where the output was removed, the same command begins anew, and so does another one.
        fs::remove_file(folder.path(&output)).unwrap();
        folder.bulk("moved.jsonl", &output, &Lengths::new(), &["--model", "other"]).unwrap();
        assert_whole(&folder.path(&output));
    }
}

#[test]
fn a_crash_around_the_last_step_loses_nothing() {
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("out.{format}");
        folder.half(&output);
        let (job, parts) = (folder.path(&format!("{output}.job.json")), folder.path(&format!("{output}.parts")));
        let begun = fs::read(&job).unwrap();
        let kept: Vec<_> = fs::read_dir(&parts).unwrap().map(|entry| entry.unwrap().path()).collect();
        let kept: Vec<_> = kept.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        folder.bulk("in.jsonl", &output, &Lengths::new(), &[]).unwrap();
        let mut noted: Value = serde_json::from_slice(&fs::read(&job).unwrap()).unwrap();
        noted["whole"] = false.into();

        // The output is there, its job is not ended, and the parts are there.
        let again = |job_says: &[u8]| {
            fs::create_dir_all(&parts).unwrap();
            kept.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
            fs::write(&job, job_says).unwrap();
            folder.bulk("in.jsonl", &output, &Lengths::new(), &[])
        };
        again(noted.to_string().as_bytes()).unwrap();
        assert_whole(&folder.path(&output));
        // The content of the output was noted, and the output did not appear.
        fs::remove_file(folder.path(&output)).unwrap();
        again(noted.to_string().as_bytes()).unwrap();
        assert_whole(&folder.path(&output));
        // The output appeared without a note: it is not ours.
        let before = fs::read(folder.path(&output)).unwrap();
        assert!(again(&begun).err().unwrap().to_string().contains("is not the file"));
        assert!(fs::read(folder.path(&output)).unwrap() == before, "{format}");
    }
}

#[test]
fn rows_without_a_vector_are_tried_again_by_the_same_job_alone() {
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("out.{format}");
        let picky = Lengths { bad: "text 700", ..Lengths::new() };
        let summary = folder.bulk("in.jsonl", &output, &picky, &[]).unwrap();
        assert_eq!((summary.rows, summary.totals.errors), (ROWS as u64, 1));
        let errors = fs::read_to_string(folder.path(&format!("{output}.errors.jsonl"))).unwrap();
        let id = if format == "jsonl" { json!(701) } else { json!("701") };
        assert_eq!(errors, format!("{{\"row\":701,\"id\":{id},\"error\":\"a bad text\"}}\n"));
        let whole = folder.files();

        let other = Lengths { direction: [-1.0, 2.0], ..Lengths::new() };
        let error = folder.bulk("in.jsonl", &output, &other, &[]).err().unwrap().to_string();
        assert!(error.contains("gives another vector") && error.contains("remove"), "{error}");
        assert!(folder.files() == whole, "{format}");

        let summary = folder.bulk("in.jsonl", &output, &picky, &[]).unwrap();
        assert_eq!((summary.rows, summary.totals.errors), (1, 1));
        let rounded = Lengths { direction: [1.001, 2.0], ..Lengths::new() };
        let summary = folder.bulk("in.jsonl", &output, &rounded, &[]).unwrap();
        assert_eq!((summary.rows, summary.totals.errors), (1, 0));
        assert!(vectors(&folder.path(&output))[700].is_array());
        assert!(!folder.path(&format!("{output}.errors.jsonl")).exists());
    }
}

#[test]
fn an_output_is_of_one_space_and_tells_it() {
    let of = |space| Lengths { space: Some(space), ..Lengths::new() };
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("out.{format}");
        let bulk = |model: &Lengths, flags: &[&str]| folder.bulk("in.jsonl", &output, model, flags);
        let error = bulk(&of("ab.cd"), &["--if-space", "12.34"]).err().unwrap().to_string();
        assert!(error.contains("another space") && !folder.path(&output).exists(), "{error}");

        // A model that changes on the way ends the run, and another run goes on in the first space only.
        let cut_off = Lengths { left: AtomicUsize::new(3000), ..of("ab.cd") };
        bulk(&cut_off, &["--if-space", "12.34, ab.cd"]).err().unwrap();
        let error = bulk(&of("12.34"), &[]).err().unwrap().to_string();
        assert!(error.contains("'space' is \"ab.cd\" in") && error.contains("\"12.34\" for this command"), "{error}");
        let error = bulk(&Lengths::new(), &[]).err().unwrap().to_string();
        assert!(error.contains("and null for this command"), "{error}");
        bulk(&Lengths { bad: "text 4700", ..of("ab.cd") }, &[]).unwrap();
        bulk(&of("ab.cd"), &[]).unwrap();
        assert_whole(&folder.path(&output));
        let written = fs::read(folder.path(&output)).unwrap();
        let count = |text: &[u8]| written.windows(text.len()).filter(|found| *found == text).count();
        match format {
            "jsonl" => assert_eq!(count(b"\"space\":\"ab.cd\","), ROWS),
            _ => assert!(count(b"trireme-space") > 0 && count(b"ab.cd") > 0),
        }
    }
}

#[test]
fn an_output_by_another_name_is_the_same_output() {
    let folder = Folder::new();
    symlink("real.jsonl", folder.path("link.jsonl")).unwrap();
    folder.half("real.jsonl");
    folder.bulk("in.jsonl", "link.jsonl", &Lengths::new(), &[]).unwrap();
    assert_whole(&folder.path("real.jsonl"));
    assert!(folder.path("link.jsonl").is_symlink() && !folder.path("link.jsonl.job.json").exists());
}

#[test]
fn ids_of_any_length_arrive_in_every_format() {
    let folder = Folder::new();
    let id = "12345678901234567890123";
    fs::write(
        folder.path("ids.jsonl"),
        format!("{{\"id\": {id}, \"text\": \"a\"}}\n{{\"id\": {id}4, \"text\": \"\"}}\n"),
    )
    .unwrap();
    for format in FORMATS {
        let output = format!("out.{format}");
        folder.bulk("ids.jsonl", &output, &Lengths::new(), &[]).unwrap();
        let errors = fs::read_to_string(folder.path(&format!("{output}.errors.jsonl"))).unwrap();
        let written = if format == "jsonl" { format!("{id}4") } else { format!("\"{id}4\"") };
        assert_eq!(errors, format!("{{\"row\":2,\"id\":{written},\"error\":\"an empty text\"}}\n"));
    }
    let lines = fs::read_to_string(folder.path("out.jsonl")).unwrap();
    assert!(lines.starts_with(&format!("{{\"id\":{id},\"embedding\":[")), "{lines}");
    // The second try reads them from the output.
    folder.bulk("ids.jsonl", "out.jsonl", &Lengths::new(), &[]).unwrap();
    assert_eq!(fs::read_to_string(folder.path("out.jsonl")).unwrap(), lines);
}
