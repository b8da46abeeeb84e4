#include "tools/prepare/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/run/start/run_data.h"
#include "models/files/data_source.h"
#include "models/text/samples/text_model.h"

extern char** environ;

namespace sluice {

namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

// A configuration file in memory that names the data, since a command line cannot name thousands of files.
FileDescriptor config_of(const std::vector<std::string>& files) {
  FileDescriptor file(memfd_create("data", 0));
  std::string text = "data = [";
  for (const std::string& path : files) {
    text += '"';
    for (const char c : path) {
      if (c == '"' || c == '\\') text += '\\';
      text += c == '\n' ? "\\n" : std::string(1, c);
    }
    text += "\",\n";
  }
  text += "]\n";
  size_t done = 0;
  while (file.get() >= 0 && done < text.size()) {
    const ssize_t n = write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) break;
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  if (done < text.size())
    throw Error(ExitCode::environment, std::string("Cannot list the data: ") + std::strerror(errno) + ".",
                "Raise the limits on open files and memory.");
  return file;
}

// `sluice prepare` with the options that were given and that it takes.
std::vector<std::string> command_of(const Options& options, const FileDescriptor& config,
                                    const std::string& tokenizer, int64_t vocabulary) {
  std::vector<std::string> words = {"sluice",
                                    verb_name(Verb::prepare),
                                    "--json",
                                    "--tokenizer",
                                    tokenizer,
                                    "--config",
                                    fmt::format("/proc/self/fd/{}", config.get())};
  if (vocabulary > 0) words.insert(words.end(), {"--vocabulary", std::to_string(vocabulary)});
  for (const OptionRow& row : option_table()) {
    const std::string name = row.name;
    if (!(row.verbs & verb_bit(Verb::prepare)) || row.on_resume == OnResume::own) continue;
    if (name == "data" || name == "tokenizer" || name == "model") continue;
    const std::vector<std::string> values = option_values(options, row);
    if (values.empty() || values == option_values(Options(), row)) continue;
    words.push_back("--" + name);
    words.insert(words.end(), values.begin(), values.end());
  }
  return words;
}

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

volatile std::sig_atomic_t child_of_handler = 0, passed_on = 0;  // passed_on: the signal that came, or 0

extern "C" void pass_on(int number) {
  const int error = errno;
  passed_on = number;
  kill(child_of_handler, number);
  errno = error;
}

// While an object lives, signals that would end this process end the child, and this process after it.
// Signals that something else handles, or that are ignored, are left alone. The object must end before the
// child is waited for.
class PassingOn {
 public:
  explicit PassingOn(pid_t child) {
    child_of_handler = child;
    passed_on = 0;
    for (const int number : kEnding) {
      struct sigaction before {};
      if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
      struct sigaction now {};  // without SA_RESTART
      now.sa_handler = pass_on;
      if (sigaction(number, &now, nullptr) == 0) taken_.push_back(number);
    }
  }
  ~PassingOn() {
    for (const int number : taken_) std::signal(number, SIG_DFL);
  }
  PassingOn(const PassingOn&) = delete;
  PassingOn& operator=(const PassingOn&) = delete;

 private:
  std::vector<int> taken_;
};

// Starts this program anew with `output` as its standard output. The child dies with the thread that calls
// this, which posix_spawn() cannot ask for. vfork() is used, since the memory of a rank must not be shared
// with a copy that is written to. `failure` receives errno. Signals are blocked: the child runs no handler.
[[gnu::noinline]] pid_t start_anew(char* const* arguments, int output, int* failure) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t parent = getpid();
  const pid_t child = vfork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int number : kEnding) {
      struct sigaction now {};
      if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) std::signal(number, SIG_DFL);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (getppid() == parent && dup2(output, STDOUT_FILENO) >= 0) execve(kThisProgram, arguments, environ);
    *failure = errno;
    _exit(127);
  }
  if (child < 0) *failure = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return child;
}

// What the child prints until it ends. The child still has to be waited for.
std::string read_to_end(const FileDescriptor& reading, pid_t child) {
  const PassingOn signals(child);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t n = 1; n != 0;) {
    n = read(reading.get(), piece.data(), piece.size());
    if (n > 0) text.append(piece.data(), static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) break;
  }
  siginfo_t ignored{};
  while (waitid(P_PID, static_cast<id_t>(child), &ignored, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  return text;
}

// What the command prints. Its errors go to this process's stderr.
std::string output_of(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(ExitCode::environment, std::string("Cannot make a pipe: ") + std::strerror(errno) + ".",
                "Raise the limit on open files (ulimit -n).");
  FileDescriptor reading(ends[0]), writing(ends[1]);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int failure = 0;
  const pid_t child = start_anew(arguments.data(), writing.get(), &failure);
  if (failure != 0) {
    if (child > 0) waitpid(child, nullptr, 0);
    throw Error(ExitCode::environment,
                std::string("Cannot start `sluice prepare`: ") + std::strerror(failure) + ".",
                "Prepare the data with that verb first.");
  }
  writing = FileDescriptor();
  std::string text = read_to_end(reading, child);
  int status = 0;
  pid_t waited = 0;
  while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (waited < 0)  // whoever started this process ignores the ends of children
    throw Error(ExitCode::environment,
                std::string("Cannot wait for `sluice prepare`: ") + std::strerror(errno) + ".",
                "Let the program that starts Sluice not ignore SIGCHLD, or prepare the data first.");
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)  // it has said why
    throw Error(static_cast<ExitCode>(WEXITSTATUS(status)), "", "");
  if (passed_on != 0)
    throw Error(ExitCode::stopped, "Stopped while the data were prepared, before the first step.",
                "Start again in the same way: what is prepared is kept.");
  if (WIFEXITED(status)) return text;
  throw Error(ExitCode::environment,
              fmt::format("The process that prepared the data was ended by signal {}.", WTERMSIG(status)),
              "Start again: what is done is kept. It may have needed more memory than there is.");
}

nlohmann::json prepared_by_child(const Options& options, const std::vector<std::string>& files,
                                 const std::string& tokenizer, int64_t vocabulary) {
  const FileDescriptor config = config_of(files);
  const std::string text = output_of(command_of(options, config, tokenizer, vocabulary));
  nlohmann::json facts = nlohmann::json::parse(text, nullptr, false);
  CHECK(facts.is_object() && facts.contains("directory"), "what `sluice prepare --json` prints");
  return facts;
}

// Adds the ends of answers that this source teaches.
void add_ends(const nlohmann::json& facts, PreparedData& data) {
  for (const auto& end : facts["ends"])
    if (const auto id = end.get<uint32_t>();
        std::find(data.ends.begin(), data.ends.end(), id) == data.ends.end())
      data.ends.push_back(id);
  const std::string note = facts["ends_note"].get<std::string>();
  if (data.ends_note.find(note) == std::string::npos)
    data.ends_note += (data.ends_note.empty() ? "" : "\n") + note;
}

// A sentence that names those of the given options without effect on data that are tokens already. For
// `train`, it leaves out the options that samples, texts and exports need, since training still uses them.
std::vector<std::string> notes_on_unused(const Options& options, Verb verb) {
  constexpr std::array kOfRecords = {"format",      "data-keys", "separator",   "train-on",
                                     "bad-records", "packing",   "long-samples"};
  constexpr std::array kOfRun = {"tokenizer", "chat-template", "eos-token", "template-values",
                                 "control-tokens"};
  std::vector<std::string> unused;
  const auto add = [&](const auto& names) {
    for (const char* name : names)
      if (is_given(options, name)) unused.push_back(std::string("--") + name);
  };
  add(kOfRecords);
  if (verb != Verb::train) add(kOfRun);
  if (unused.empty()) return {};
  return {fmt::format("The data are tokens already: {} {} nothing for them.", fmt::join(unused, ", "),
                      unused.size() == 1 ? "means" : "mean")};
}

// Data that are tokens need no tokenizer, but the run's samples and exports will.
void check_text_options(const Options& options, const std::string& tokenizer) {
  const bool has_any = has_tokenizer(tokenizer);
  if (is_given(options, "tokenizer") && !has_any)
    throw Error(ExitCode::usage,
                fmt::format("There is no tokenizer in {}: it has neither tokenizer.json nor tokenizer.model.",
                            printable(options.text.tokenizer)),
                "Check the path of --tokenizer, or leave it out.");
  if (!options.text.chat_template.empty()) check_chat_template(tokenizer, options.text.chat_template);
  if (!is_given(options, "eos-token") || !has_any) return;
  TextModel text = open_text_model(tokenizer, options.text.chat_template);
  set_end_token(text, options.text.end_token);
}

}  // namespace

PreparedData prepare_data(const Options& options, Verb verb, const std::string& model_directory,
                          int64_t vocabulary, std::vector<std::string>& notes) {
  PreparedData data;
  const std::string tokenizer = tokenizer_of(options, model_directory);
  const auto are_prepared = [&](const std::vector<std::string>& files, const char* option) {
    if (!are_texts(options, files, tokenizer, option)) return false;
    if (!has_tokenizer(tokenizer))
      throw Error(ExitCode::usage,
                  fmt::format("--{} needs a tokenizer, and there is none: {} has neither tokenizer.json nor "
                              "tokenizer.model.",
                              option, tokenizer.empty() ? "--model" : printable(tokenizer)),
                  "Add --tokenizer DIR, the directory of the model that the text is for.");
    return true;
  };
  const auto prepared = [&](const std::vector<std::string>& files) {
    return prepared_by_child(options, files, tokenizer, vocabulary);
  };
  const std::vector<DataSource> sources = sources_of(options.data.train);
  if (are_prepared(files_of(sources), "data"))
    for (const DataSource& source : sources) {
      const nlohmann::json facts = prepared(source.files);
      data.train.push_back(facts["directory"].get<std::string>());
      add_ends(facts, data);
    }
  if (are_prepared(options.data.validation, "val-data"))
    data.validation = prepared(options.data.validation)["directory"].get<std::string>();
  if (data.train.empty() && options.data.val_split.percent > 0)
    throw Error(ExitCode::usage, "--val-split holds samples out, and --data are token files.",
                "Give --val-data.");
  if (!data.train.empty() || !data.validation.empty()) return data;
  check_text_options(options, tokenizer);
  for (std::string& note : notes_on_unused(options, verb)) notes.push_back(std::move(note));
  return data;
}

}  // namespace sluice
