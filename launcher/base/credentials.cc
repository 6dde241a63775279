#include "cohort/launcher/base/credentials.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/random.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* it) const {
    kFree(it);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;

constexpr std::chrono::seconds kBackdate = std::chrono::hours(1);

absl::Status OpenSslError(const char* what) {
  char text[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return absl::InternalError(std::string("OpenSSL could not ") + what + ": " + text);
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a P-256 key");
  return key;
}

absl::StatusOr<std::string> Pem(const Certificate& certificate) {
  const Memory memory(BIO_new(BIO_s_mem()));
  if (memory == nullptr || PEM_write_bio_X509(memory.get(), certificate.get()) != 1) {
    return OpenSslError("write a certificate");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<std::string> Pem(const Key& key) {
  const Memory memory(BIO_new(BIO_s_secmem()));  // wiped when freed
  if (memory == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(memory.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpenSslError("write a private key");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// An unsigned certificate for `key`: version 3, a random serial number, subject `name`, valid from an hour ago.
absl::StatusOr<Certificate> Draft(const Key& key, const std::string& name, std::chrono::seconds validity) {
  Certificate certificate(X509_new());
  uint64_t serial = 0;
  if (certificate == nullptr || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) {
    return OpenSslError("start a certificate");
  }
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const bool ok = X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
                  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1 | 1) == 1 &&
                  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kBackdate.count()) != nullptr &&
                  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), validity.count()) != nullptr &&
                  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0) == 1 &&
                  X509_set_pubkey(certificate.get(), key.get()) == 1;
  if (!ok) return OpenSslError("fill a certificate in");
  return certificate;
}

}  // namespace

std::string AgentCertificateName(uint32_t node) { return "cohort-agent-" + std::to_string(node); }

struct JobAuthority::Rep {
  Key key;
  Certificate certificate;
  std::string pem;
  std::chrono::seconds validity;

  absl::StatusOr<TlsIdentity> Issue(const std::vector<std::string>& names) const;
};

absl::StatusOr<TlsIdentity> JobAuthority::Rep::Issue(const std::vector<std::string>& names) const {
  COHORT_ASSIGN_OR_RETURN(const Key leaf_key, NewKey());
  COHORT_ASSIGN_OR_RETURN(const Certificate leaf, Draft(leaf_key, names.front(), validity));
  std::string alternatives;
  for (const std::string& name : names) alternatives += (alternatives.empty() ? "DNS:" : ",DNS:") + name;
  X509* issuer = certificate.get();
  if (X509_set_issuer_name(leaf.get(), X509_get_subject_name(issuer)) != 1 ||
      !AddExtension(leaf.get(), issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(leaf.get(), issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(leaf.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(leaf.get(), issuer, NID_subject_alt_name, alternatives) ||
      X509_sign(leaf.get(), key.get(), EVP_sha256()) == 0) {
    return OpenSslError("issue a certificate");
  }
  TlsIdentity identity;
  identity.ca_certificate = pem;
  COHORT_ASSIGN_OR_RETURN(identity.certificate, Pem(leaf));
  COHORT_ASSIGN_OR_RETURN(identity.private_key, Pem(leaf_key));
  return identity;
}

JobAuthority::JobAuthority(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
JobAuthority::JobAuthority(JobAuthority&&) noexcept = default;
JobAuthority& JobAuthority::operator=(JobAuthority&&) noexcept = default;
JobAuthority::~JobAuthority() = default;

absl::StatusOr<JobAuthority> JobAuthority::Create(std::chrono::seconds validity) {
  auto rep = std::make_unique<Rep>();
  rep->validity = validity;
  COHORT_ASSIGN_OR_RETURN(rep->key, NewKey());
  COHORT_ASSIGN_OR_RETURN(rep->certificate, Draft(rep->key, "cohort-job", validity));
  X509* certificate = rep->certificate.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      !AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign") ||
      X509_sign(certificate, rep->key.get(), EVP_sha256()) == 0) {
    return OpenSslError("make the job's certificate authority");
  }
  COHORT_ASSIGN_OR_RETURN(rep->pem, Pem(rep->certificate));
  return JobAuthority(std::move(rep));
}

absl::StatusOr<TlsIdentity> JobAuthority::IssueAgent(uint32_t node, bool hosts_rendezvous) const {
  std::vector<std::string> names = {AgentCertificateName(node)};
  if (hosts_rendezvous) names.push_back(kRendezvousName);
  return rep_->Issue(names);
}

std::string NewJobId() {
  unsigned char bytes[8] = {};
  (void)!::getrandom(bytes, sizeof bytes, 0);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id = "job-";
  for (const unsigned char byte : bytes) id += {kDigits[byte >> 4], kDigits[byte & 15]};
  return id;
}

absl::StatusOr<std::string> NewJobSecret() {
  std::string secret(32, '\0');
  if (RAND_priv_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(secret.size())) != 1) {
    return OpenSslError("find randomness for the job's secret");
  }
  return secret;
}

}  // namespace cohort::launcher
