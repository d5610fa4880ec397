"""The Homebrew formula of a release: it installs the standalone archive, so it needs neither Python nor a compiler."""

import hashlib
from pathlib import Path

FORMULA = """\
class Tahr < Formula
  desc "LLM inference engine that runs anywhere from a laptop CPU to a data-centre GPU"
  homepage "{url}"
  url "{url}/releases/download/v{version}/{archive}"
  version "{version}"
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on arch: :x86_64
  depends_on :linux

  def install
    libexec.install Dir["*"]
    bin.write_exec_script libexec/"tahr"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/tahr --version")
  end
end
"""


def formula(archive: Path, version: str, url: str) -> str:
    """The formula for an archive of a version that is published below an address."""
    return FORMULA.format(url=url.rstrip("/"), version=version, archive=archive.name, digest=digest_of(archive))


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
