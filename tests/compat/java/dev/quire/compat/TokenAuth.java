package dev.quire.compat;

import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/**
 * Sends the setting `token` to bookies that ask for tokens: name this class in `clientAuthProviderFactoryClass`.
 *
 * <p>With TLS the token waits for the end of the handshake: `init` is called while the connection is in clear.
 */
public final class TokenAuth implements ClientAuthProvider.Factory {
    private byte[] token = new byte[0];
    private boolean usesTls;

    @Override
    public String getPluginName() {
        return "token";
    }

    @Override
    public void init(ClientConfiguration settings) {
        token = settings.getString("token").getBytes(StandardCharsets.UTF_8);
        String factory = settings.getTLSProviderFactoryClass();
        usesTls = factory != null && !factory.isEmpty();
    }

    @Override
    public ClientAuthProvider newProvider(ClientConnectionPeer peer, GenericCallback<Void> done) {
        return new ClientAuthProvider() {
            private GenericCallback<AuthToken> sender;

            @Override
            public void init(GenericCallback<AuthToken> callback) {
                sender = callback;
                if (!usesTls) {
                    send();
                }
            }

            @Override
            public void onProtocolUpgrade() {
                send();
            }

            @Override
            public void process(AuthToken answer, GenericCallback<AuthToken> callback) {
                // One message is enough; whatever is answered OK ends the exchange.
                done.operationComplete(BKException.Code.OK, null);
            }

            private void send() {
                sender.operationComplete(BKException.Code.OK, AuthToken.wrap(token));
            }
        };
    }
}
