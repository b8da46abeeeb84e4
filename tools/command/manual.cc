#include "tools/command/manual.h"

#include <fmt/format.h>

#include <cctype>
#include <set>
#include <sstream>

#include "tools/command/help.h"
#include "tools/command/verbs.h"
#include "tools/command/version.h"

namespace sluice {
namespace {

// The text, escaped so that roff reads no character as a request, an escape or a typographic sign.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-' || c == '\'' || c == '^' || c == '~' || c == '`')
      out += c == '-' ? "\\-" : c == '\'' ? "\\(aq" : c == '^' ? "\\(ha" : c == '~' ? "\\(ti" : "\\(ga";
    else
      out += c == '\t' ? "\\ " : std::string(1, c);
  }
  return out;
}

void append_item(std::string& out, const std::string& head, const std::string& text) {
  out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(head), escaped(text));
}

// Lines of HelpSection::text: paragraphs, and rows of two parts.
void append_text(std::string& out, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t second = line.starts_with("  ") ? second_part(line) : 0;
    if (second == 0) {
      out += ".PP\n" + escaped(line) + "\n";
    } else {
      const size_t first = line.find_first_not_of(' ');
      append_item(out, line.substr(first, line.find("  ", first) - first), line.substr(second));
    }
  }
}

void append_examples(std::string& out, const std::string& examples) {
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) {
    const bool comment = line.starts_with("# ");
    out += comment ? ".PP\n" + escaped(line.substr(2)) + "\n" : ".RS\n.PP\n" + escaped(line) + "\n.RE\n";
  }
}

void append_section(std::string& out, const HelpSection& section) {
  append_text(out, section.text);
  for (const HelpItem& item : section.items) append_item(out, item.head, item.text);
  append_examples(out, section.examples);
}

// Explains the options that no verb before this one takes, and names the others.
void append_options(std::string& out, Verb verb, std::set<const OptionRow*>& explained) {
  std::string others, group;
  for (const OptionRow& row : option_table()) {
    if (!(row.verbs & verb_bit(verb))) continue;
    if (!explained.insert(&row).second) {
      others += fmt::format("{}--{}", others.empty() ? "" : ", ", row.name);
      continue;
    }
    if (group != row.group) out += fmt::format(".PP\n\\fIOptions: {}\\fR\n", escaped(row.group));
    group = row.group;
    const HelpItem item = option_item(row, verb);
    append_item(out, item.head, item.text);
  }
  if (!others.empty()) out += ".PP\nOptions that are explained above: " + escaped(others) + ".\n";
}

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace

std::string manual() {
  const HelpPage program = program_page();
  // Without hyphenation and wide gaps, which would change what can be pasted.
  std::string out =
      fmt::format(".TH SLUICE 1 \"\" \"sluice {}\" \"User Commands\"\n.ad l\n.nh\n", escaped(kVersion));
  const size_t colon = program.summary.find(':');
  out += fmt::format(".SH NAME\n{} \\- {}\n", escaped(program.summary.substr(0, colon)),
                     escaped(program.summary.substr(colon + 2, program.summary.size() - colon - 3)));
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR\n.SH DESCRIPTION\n", escaped(program.usage));
  append_text(out, program.about);
  std::set<const OptionRow*> explained;
  for (const VerbRow& row : verb_table()) {
    const HelpPage page = verb_page(row.verb, HelpExtent::all);
    out += fmt::format(".SH sluice {}\n.PP\n\\fB{}\\fR\n", verb_name(row.verb), escaped(page.usage));
    append_text(out, page.about);
    append_options(out, row.verb, explained);
    out += ".PP\n\\fIExamples\\fR\n";
    append_examples(out, row.examples);
  }
  const std::vector<HelpSection> models = model_sections();
  for (const std::vector<HelpSection>& sections : {models, program.sections})
    for (const HelpSection& section : sections) {
      out += fmt::format(".SH {}\n", escaped(capitalised(section.title)));
      append_section(out, section);
    }
  return out;
}

}  // namespace sluice
