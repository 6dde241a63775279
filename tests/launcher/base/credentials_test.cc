#include "cohort/launcher/base/credentials.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <set>

namespace cohort::launcher {
namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Certificate Parse(const std::string& pem) {
  BIO* memory = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  Certificate certificate(PEM_read_bio_X509(memory, nullptr, nullptr, nullptr), X509_free);
  BIO_free(memory);
  return certificate;
}

bool IsSignedBy(const std::string& leaf, const std::string& authority) {
  const Certificate certificate = Parse(leaf);
  const Certificate issuer = Parse(authority);
  std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(), X509_STORE_free);
  X509_STORE_add_cert(store.get(), issuer.get());
  std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509_STORE_CTX_init(context.get(), store.get(), certificate.get(), nullptr);
  return X509_verify_cert(context.get()) == 1;
}

TEST(Credentials, CertificatesNameTheirHolderAndVerifyAgainstTheirJobOnly) {
  const auto job = JobAuthority::Create();
  const auto other = JobAuthority::Create();
  ASSERT_TRUE(job.ok() && other.ok());
  const auto agent = job->IssueAgent(12);
  const auto peer = job->IssueAgent(3);
  const auto stranger = other->IssueAgent(3);
  ASSERT_TRUE(agent.ok() && peer.ok() && stranger.ok()) << agent.status();
  EXPECT_EQ(agent->ca_certificate, peer->ca_certificate);
  EXPECT_TRUE(IsSignedBy(agent->certificate, peer->ca_certificate));
  EXPECT_FALSE(IsSignedBy(agent->certificate, stranger->ca_certificate));
  const Certificate certificate = Parse(agent->certificate);
  EXPECT_EQ(X509_check_host(certificate.get(), "cohort-agent-12", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate.get(), "cohort-agent-1", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_host(certificate.get(), kRendezvousName, 0, 0, nullptr), 0);
}

TEST(Credentials, TheHostingAgentMayServe) {
  const auto job = JobAuthority::Create();
  const auto host = job->IssueAgent(0, /*hosts_rendezvous=*/true);
  ASSERT_TRUE(host.ok());
  const Certificate certificate = Parse(host->certificate);
  EXPECT_EQ(X509_check_host(certificate.get(), kRendezvousName, 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate.get(), "cohort-agent-0", 0, 0, nullptr), 1);
}

TEST(Credentials, AnAgentCannotIssueCertificates) {
  const auto job = JobAuthority::Create();
  const auto agent = job->IssueAgent(0);
  const Certificate certificate = Parse(agent->certificate);
  EXPECT_EQ(X509_check_ca(certificate.get()), 0);
  EXPECT_NE(X509_check_ca(Parse(agent->ca_certificate).get()), 0);
}

TEST(Credentials, KeysAndSerialsAreFreshAndValidityIsBoundedBothWays) {
  const auto job = JobAuthority::Create(std::chrono::hours(2));
  std::set<std::string> keys;
  for (uint32_t node = 0; node < 20; ++node) {
    const auto agent = job->IssueAgent(node);
    ASSERT_TRUE(agent.ok());
    EXPECT_TRUE(keys.insert(agent->private_key).second);
    const Certificate certificate = Parse(agent->certificate);
    time_t soon = time(nullptr) - 1800;  // a node whose clock is half an hour behind
    EXPECT_LT(X509_cmp_time(X509_get0_notBefore(certificate.get()), &soon), 0);
    time_t later = time(nullptr) + 3 * 3600;
    EXPECT_LT(X509_cmp_time(X509_get0_notAfter(certificate.get()), &later), 0);
  }
}

// Agents shake hands again when a standby takes over, however long the job has run by then.
TEST(Credentials, CertificatesOutlastTheLongestJobs) {
  const auto job = JobAuthority::Create();
  ASSERT_TRUE(job.ok());
  const Certificate certificate = Parse(job->IssueAgent(0)->certificate);
  time_t in_five_years = std::time(nullptr) + time_t{5} * 365 * 24 * 3600;
  EXPECT_GT(X509_cmp_time(X509_get0_notAfter(certificate.get()), &in_five_years), 0);
}

TEST(Credentials, SecretsAreThirtyTwoFreshBytes) {
  const auto one = NewJobSecret();
  const auto two = NewJobSecret();
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->size(), 32u);
  EXPECT_NE(*one, *two);
}

}  // namespace
}  // namespace cohort::launcher
